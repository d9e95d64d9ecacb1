"""Softmax over a window of the last items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_whole, distances, softmax_of
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Local(RowNormaliser):
    """Never spread over more than a window of items, chosen by position and not by content.

        p = softmax over the last `window` items of the row, 0 elsewhere

    These are the last items that the row can see: under a causal mask, the usual sliding window
    (arXiv 2004.05150). Nothing outside the window can be found.

    Args:
        window: number of items; the default of 8 has no source.

    Raises:
        ValueError: if the window is not an integer of 1 or more.
    """

    window: int = 8
    sparse: ClassVar[bool] = True
    order_dependent: ClassVar[bool] = True
    fused: ClassVar[str | None] = "mask"

    def __post_init__(self) -> None:
        check_whole("window", self.window, "a number of items")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        seen = xp.where(distances(rows) < self.window, rows.values, -math.inf)
        return softmax_of(prepare(seen, None, rows.axis))
