"""The difference of two softmaxes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import (
    Normaliser,
    check_number,
    finish,
    parameter,
    prepare_pair,
    softmax_of,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Differential(Normaliser):
    """Cancel what two attention maps have in common, as a differential amplifier cancels noise.

        p = softmax(logits) - second_weight * softmax(second)

    The call takes two sets of logits, from two halves of the queries and keys. The weights have
    either sign and sum to 1 - second_weight. In arXiv 2410.05258 the second weight (lambda) is
    exp(a.b) - exp(c.d) plus a constant that rises with depth from 0.2 to 0.8: compute it and pass
    it as an array. The normalisation of each head's output in the paper is not part of the weights.

    Args:
        second_weight: the factor on the second softmax; a number, or one per row.

    Raises:
        ValueError: if the number is not finite.

    Examples:
        >>> weights = Differential(0.8)(logits, second)
    """

    second_weight: Float[Array, "..."] | float = 0.8
    sums_to_one: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ("second_weight",)
    fused: ClassVar[str | None] = "two calls"
    needs: ClassVar[str | None] = "a second set of logits"

    def __post_init__(self) -> None:
        check_number("second_weight", self.second_weight, -math.inf, "a finite number")

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
        weight = parameter("second_weight", self.second_weight, first)
        common = first.xp.astype(softmax_of(other), first.values.dtype, copy=False)
        return finish(softmax_of(first) - weight * common, first, logits)
