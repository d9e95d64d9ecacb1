"""Softmax over the items with a positive logit, with distances counted over those alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_number, parameter, softmax_of, sum_after
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class ThresholdRelative(RowNormaliser):
    """Remove items that do not matter altogether, and count distance over those that do.

        p = softmax over the items with z_i > 0 of z_i - slope * d_i,    0 elsewhere
        d_i = number of kept items later than i along the axis

    This is the part of threshold relative attention (arXiv 2503.23174) that logits alone can give.
    There the distance goes through a forget gate, a function of the token, which the logits do not
    contain: compute it and pass it as an array of slopes. The weights sum to 1, or to 0 where no
    logit is positive. The weight of an item jumps as its logit crosses 0, and no gradient sees that
    jump.

    Args:
        slope: the penalty per kept item; a number, or one per row.

    Raises:
        ValueError: if the number is not finite.
    """

    slope: Float[Array, "..."] | float = 0.0
    sums_to_one: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    order_dependent: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ("slope",)
    fused: ClassVar[str | None] = "mask, if the slope is 0"

    def __post_init__(self) -> None:
        check_number("slope", self.slope, -math.inf, "a finite number")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        kept = rows.values > 0
        distance = sum_after(xp.astype(kept, rows.values.dtype), rows.axis, xp)
        score = rows.values - parameter("slope", self.slope, rows) * distance
        return softmax_of(prepare(xp.where(kept, score, -math.inf), None, rows.axis))
