"""The last item takes its share of a stick, the one before a share of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, finite_values, sum_after, visible_items
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class StickBreaking(RowNormaliser):
    """Prefer the most recent item that matters, without any positional encoding.

        p_i = sigmoid(z_i) * prod over later k of (1 - sigmoid(z_k))

    Later means nearer to the end of the axis, and only items that the row can see count. Earlier
    items take no weight from later ones, however many there are. The weights sum to at most 1; the
    rest is prod_k (1 - sigmoid(z_k)). A logit of +inf leaves nothing for earlier items. Computed as
    the exponential of a sum. arXiv 2410.17980.
    """

    sums_to_one: ClassVar[bool] = False
    order_dependent: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        logit = finite_values(rows)
        taken = _log_sigmoid(logit, xp)
        left = xp.where(visible_items(rows), _log_sigmoid(-logit, xp), 0.0)
        return _array.exp(taken + sum_after(left, rows.axis, xp), xp)


def _log_sigmoid(logit: Array, xp: Any) -> Array:
    """Return log(1 / (1 + exp(-z))) = min(z, 0) - log(1 + exp(-|z|))."""
    size = xp.where(logit < 0, -logit, logit)  # not abs, whose gradient at 0 is 0
    return xp.where(logit < 0, logit, 0.0) - xp.log1p(_array.exp(-size, xp))
