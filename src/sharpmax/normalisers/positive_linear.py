"""Weights proportional to a positive function of the logit that grows linearly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser
from sharpmax.normalisers._scaling import softmax_of
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class PositiveLinear(RowNormaliser):
    """Weights that sum to one and grow with the logit only linearly.

        p_i = f(z_i) / sum_j f(z_j),    f(z) = elu(z) + 1 = z + 1 for z > 0, exp(z) for z <= 0

    What can be had of linear attention (arXiv 2006.16236) from logits alone. There f is applied to
    the query and to the key *before* their product, phi(q).phi(k), which is what makes its cost
    linear and cannot be undone from q.k; here it is applied to the logit, so the growth is the same
    and the cost is not.
    """

    shift_invariant: ClassVar[bool] = False
    fused: ClassVar[str | None] = "log-space trick: scores log f"

    def weights(self, rows: Rows) -> Float[Array, "*rows items"]:
        # Softmax of log f: no sum of large f overflows, and one of small ones does not vanish.
        xp, values = rows.xp, rows.values
        grown = xp.log1p(xp.where(values > 0, values, 0.0))
        return softmax_of(prepare(xp.where(values > 0, grown, values), None, rows.axis))
