"""Softmax that gives each range of distances its share, near or far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, distances, softmax_of, visible_items
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class ScaleInvariant(RowNormaliser):
    """Give items 10 to 100 away as much weight as those 100 to 1,000 away, however long the row.

        p = softmax(a_t * z + m_t),    a_t^2 = 2 log(t / tau + 1) + 1,    m_t = 1 - a_t^2

    t is the distance: the number of items that the row can see and that come later along the axis,
    so 0 for the last. Under a causal mask this is how far back an item is. If logits are standard
    normal, exp(a_t * z + m_t) has the mean e^(1/2) / (t / tau + 1), so that items far away have
    smaller weights on average and larger differences. arXiv 2505.17083. The schedule follows from
    its two conditions with a_0 = 1 and m_0 = 0, and was confirmed in a public transcription of it.

    Args:
        tau: the distance up to which logits change little.

    Raises:
        ValueError: if `tau` is not positive and finite.
    """

    tau: float = 10.0
    order_dependent: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _array.positive_number("tau", self.tau)

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        growth = 2 * xp.log1p(distances(rows) / self.tau)
        visible = visible_items(rows)
        logit = xp.where(visible, rows.values, 0.0)
        score = xp.where(visible, xp.sqrt(growth + 1) * logit - growth, -math.inf)
        return softmax_of(prepare(score, None, rows.axis))
