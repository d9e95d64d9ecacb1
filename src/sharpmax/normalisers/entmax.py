"""The family of sparse normalisers between softmax and sparsemax, and beyond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_number, parameter, positions, softmax_of
from sharpmax.normalisers._power import power_weights
from sharpmax.normalisers.sparsemax import sparsemax_of
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Entmax(RowNormaliser):
    """Give exactly 0 to items far below the top; the larger alpha, the more items get 0.

        p = argmax over the simplex of <p, z> + H_alpha(p)
        p_i = max((alpha - 1) z_i - tau, 0)^(1 / (alpha - 1)),    tau such that they sum to 1

    H_alpha is the Tsallis entropy. Alpha 1 is softmax, 2 is sparsemax. An item 1 / (alpha - 1) or
    more below the maximum has weight 0. Exact by sorting for the numbers 1, 1.5 and 2. Other
    numbers and arrays are solved as a root and normalised exactly. arXiv 1905.05702.

    Args:
        alpha: a number of 1 or more, or an array with one per row, which may be learned.

    Raises:
        ValueError: if the number is below 1 or not finite.
    """

    alpha: Float[Array, "..."] | float = 1.5
    sparse: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("alpha",)

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 1.0, "a finite number from 1 (softmax) up")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        return entmax_of(rows, parameter("alpha", self.alpha, rows))


def entmax_of(rows: Rows, alpha: Array | float) -> Float[Array, "..."]:
    """Compute entmax of prepared rows."""
    if not isinstance(alpha, float):
        # Alpha must be 1 or more. An array cannot be checked while traced, so its row becomes NaN.
        return power_weights(rows, rows.xp.where(alpha >= 1, alpha, float("nan")) - 1)
    exact = {1.0: softmax_of, 1.5: _entmax_1_5, 2.0: sparsemax_of}
    return exact[alpha](rows) if alpha in exact else power_weights(rows, alpha - 1)


def _entmax_1_5(rows: Rows) -> Float[Array, "..."]:
    """Compute p_i = max(x_i - tau, 0)^2 with x = z / 2."""
    xp = rows.xp
    half = rows.offset / 2
    support = half > _threshold(_array.stop_gradient(half), rows)
    # As in sparsemax: solved again on the graph, for the items of the support.
    kept = xp.where(support, half, 0.0)
    size = rows.nonzero(rows.sum(xp.astype(support, half.dtype)))
    mean = rows.sum(kept) / size
    scatter = rows.sum(xp.where(support, kept - mean, 0.0) ** 2)
    room = (1.0 - scatter) / size
    tau = mean - xp.sqrt(xp.where(room > 0, room, 1.0))
    return xp.where(support & (kept > tau), kept - tau, 0.0) ** 2


def _threshold(half: Array, rows: Rows) -> Float[Array, "..."]:
    """Compute tau of the k largest items for every k; right is the last k with all items above."""
    xp, axis = rows.xp, rows.axis
    # Items at -1 or below have no weight. Limited to -1, their squares cannot overflow.
    ordered = xp.sort(_array.clamp(half, -1.0, 0.0, xp), axis=axis, descending=True)
    size = xp.astype(positions(ordered, axis, xp) + 1, half.dtype)
    mean = xp.cumulative_sum(ordered, axis=axis) / size
    square = xp.cumulative_sum(ordered**2, axis=axis) / size
    room = 1.0 / size - (square - mean**2)
    tau = mean - xp.sqrt(_array.clamp(room, 0.0, 1.0, xp))
    # tau rises with k up to the right one, so that is the largest of those that fit.
    return xp.max(xp.where(tau <= ordered, tau, -1.0), axis=axis, keepdims=True)
