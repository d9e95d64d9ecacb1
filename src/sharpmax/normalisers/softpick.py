"""Softmax with the exponential lowered by 1, so that items with a negative logit get nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, visible_items
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Softpick(RowNormaliser):
    """Let a head attend to nothing, without a sink: items with a negative logit have weight 0.

        p_i = max(exp(z_i) - 1, 0) / sum_j |exp(z_j) - 1|

    Items with a negative logit count in the denominator, so that they keep a gradient and the
    weights sum to less than 1. A row whose logits are all 0 has weights 0. arXiv 2504.20966,
    confirmed in several implementations, which add a constant of 1e-8 to the denominator.
    """

    sums_to_one: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        # Numerator and denominator are divided by exp(max(maximum, 0)). It is a constant to the
        # gradient, since it cancels.
        top = _array.stop_gradient(rows.maximum)
        unit = _array.exp(-xp.where(top > 0, top, 0.0), xp)
        # Near 0 by expm1, whose digits the difference of two exponentials would lose.
        large = _array.exp(rows.offset, xp) - unit
        small = xp.expm1(xp.where(rows.values < 1, rows.values, 0.0)) * unit
        lowered = xp.where(rows.values < 1, small, large)
        positive = xp.where(rows.values > 0, lowered, 0.0)
        size = xp.where(visible_items(rows), xp.where(rows.values > 0, lowered, -lowered), 0.0)
        return positive / rows.nonzero(rows.sum(size))
