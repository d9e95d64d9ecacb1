"""The point of the simplex nearest to the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, positions
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Sparsemax(RowNormaliser):
    """Give exactly 0 to items far below the top, and weights linear in the logit to the others.

        p = argmin over the simplex of |p - z|^2,    p_i = max(z_i - tau, 0)

    Exact, by sorting: tau is the largest of (sum of the k largest logits - 1) / k over k. An item 1
    or more below the maximum has weight 0. arXiv 1602.02068; the same as entmax with alpha = 2.
    """

    sparse: ClassVar[bool] = True

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        return sparsemax_of(rows)


def sparsemax_of(rows: Rows) -> Float[Array, "..."]:
    """Compute sparsemax of prepared rows."""
    xp = rows.xp
    tau = _threshold(_array.stop_gradient(rows.offset), rows)
    # Solved again on the graph, for the items of the support. That gives the whole gradient, since
    # the support is constant almost everywhere.
    support = rows.offset > tau
    kept = xp.where(support, rows.offset, 0.0)
    size = rows.nonzero(rows.sum(xp.astype(support, rows.offset.dtype)))
    exact = (rows.sum(kept) - 1.0) / size
    return xp.where(support & (kept > exact), kept - exact, 0.0)


def _threshold(offset: Array, rows: Rows) -> Float[Array, "..."]:
    xp, axis = rows.xp, rows.axis
    ordered = xp.sort(offset, axis=axis, descending=True)
    size = xp.astype(positions(ordered, axis, xp) + 1, offset.dtype)
    sums = xp.cumulative_sum(ordered, axis=axis)
    return xp.max((sums - 1.0) / size, axis=axis, keepdims=True)
