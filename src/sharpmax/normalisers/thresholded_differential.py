"""The difference of two maps of what exceeds a threshold that grows with the row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import (
    Normaliser,
    check_number,
    finish,
    finite_values,
    log_items,
    parameter,
    prepare_pair,
)
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class ThresholdedDifferential(Normaliser):
    """Keep only logits above what chance reaches in a row of this length, in two maps.

        p = max(z - t_n, 0)^power - second_weight * max(second - t_n, 0)^power
        t_n = threshold * sqrt(2 log n)

    The largest of n standard normal numbers is about sqrt(2 log n), so that a threshold of 1 lets
    about as many items pass by chance in long rows as in short ones. The weights do not sum to 1,
    and a row may have none. arXiv 2601.12145, confirmed in its authors' code. There the logits are
    cosines of query and key, and the threshold is divided by sqrt(d), d being the size of a head;
    here logits are sqrt(d) times the cosine, which changes all weights by one constant. The output
    of the head is then divided by its root mean square, which is not part of the weights.

    Args:
        threshold: the factor on sqrt(2 log n); a number, or one per row.
        second_weight: the factor on the second map; a number, or one per row.
        power: the power of what exceeds the threshold, 1 or more.

    Raises:
        ValueError: if a number is not finite, or the power below 1.

    Examples:
        >>> weights = ThresholdedDifferential()(logits, second)
    """

    threshold: Float[Array, "..."] | float = 1.0
    second_weight: Float[Array, "..."] | float = 0.5
    power: float = 2.0
    sums_to_one: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ("threshold", "second_weight")
    needs: ClassVar[str | None] = "a second set of logits"

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, -math.inf, "a finite number")
        check_number("second_weight", self.second_weight, -math.inf, "a finite number")
        check_number("power", self.power, 1.0, "a finite number from 1 up")

    def __call__(
        self,
        logits: Float[Array, "..."],
        second: Float[Array, "..."] | None = None,
        *,
        where: Bool[Array, "..."] | None = None,
        axis: int = -1,
    ) -> Float[Array, "..."]:
        """Turn two sets of logits into weights.

        Args:
            logits: NumPy, PyTorch or JAX array of a floating type.
            second: the second set of logits, of the same shape and library.
            where: boolean mask for both, True for the items that take part.
            axis: the axis of the items.

        Returns:
            The weights, with the library, device, type and gradient graph of `logits`.

        Raises:
            TypeError: if there is no second set, or it comes from another library.
            ValueError: if a shape does not fit.
        """
        first, other = prepare_pair(self, logits, second, where, axis)
        threshold = parameter("threshold", self.threshold, first)
        weight = parameter("second_weight", self.second_weight, first)
        passed = self._exceed(first, threshold) - weight * self._exceed(other, threshold)
        # A comparison with a threshold loses a NaN.
        spoiled = first.xp.where(first.xp.isnan(other.maximum), math.nan, passed)
        return finish(spoiled, first, logits)

    def _exceed(self, rows: Rows, threshold: Any) -> Float[Array, "..."]:
        """Return how much each logit exceeds the threshold of its row, to the power."""
        xp = rows.xp
        # The root has no gradient at log 1, and needs none: n is no variable.
        excess = finite_values(rows) - threshold * xp.sqrt(2 * log_items(rows))
        # 0 to a power has no gradient either, whatever the power.
        passes = excess > 0
        return xp.where(passes, xp.where(passes, excess, 1.0) ** self.power, 0.0)
