"""Softmax over a window of the last items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_whole, visible
from sharpmax.normalisers._order import after
from sharpmax.normalisers._scaling import softmax_of
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Local(RowNormaliser):
    """Never spread over more than a window of items, chosen by place and not by content.

        p = softmax over the last `window` items of the row, 0 elsewhere

    The last of those that the row can see: under a causal mask that is the usual sliding window.
    Nothing outside it can be found. Sliding windows: arXiv 2004.05150. The default of 8 has no
    source.
    """

    window: int = 8
    sparse: ClassVar[bool] = True
    order_dependent: ClassVar[bool] = True
    fused: ClassVar[str | None] = "mask"

    def __post_init__(self) -> None:
        check_whole("window", self.window, "a number of items")

    def weights(self, rows: Rows) -> Float[Array, "*rows items"]:
        xp = rows.xp
        later = after(xp.astype(visible(rows), xp.int32), rows.axis, xp)
        seen = xp.where(later < self.window, rows.values, -math.inf)
        return softmax_of(prepare(seen, None, rows.axis))
