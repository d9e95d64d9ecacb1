"""Weights proportional to a positive function that grows linearly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, softmax_of
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class PositiveLinear(RowNormaliser):
    """Give weights that sum to one and grow only linearly with the logit.

        p_i = f(z_i) / sum_j f(z_j),    f(z) = elu(z) + 1 = z + 1 for z > 0, exp(z) for z <= 0

    This is the part of linear attention (arXiv 2006.16236) that logits alone can give. There f is
    applied to the query and to the key *before* their product, phi(q).phi(k), which makes the cost
    linear. Here it is applied to the logit: the growth is the same, the cost is not.
    """

    shift_invariant: ClassVar[bool] = False
    fused: ClassVar[str | None] = "log-space trick: scores log f"

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        # As the softmax of log f: sums of large f do not overflow, sums of small f do not vanish.
        xp, values = rows.xp, rows.values
        grown = xp.log1p(xp.where(values > 0, values, 0.0))
        return softmax_of(prepare(xp.where(values > 0, grown, values), None, rows.axis))
