"""Softmax over the largest logits alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_whole, softmax_of
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class TopK(RowNormaliser):
    """Never spread over more than k items, however many there are.

        p = softmax over the k largest logits, 0 elsewhere

    Of equal logits at the cut, those first along the axis are kept, so exactly k items are. With k
    items or fewer this is softmax. With k = 1 it is `Hard`, except for the gradient. arXiv
    2106.06899.

    Args:
        k: number of items to keep; the default of 8 has no source.

    Raises:
        ValueError: if k is not an integer of 1 or more.
    """

    k: int = 8
    sparse: ClassVar[bool] = True
    fused: ClassVar[str | None] = "mask, after a pass that finds the largest"

    def __post_init__(self) -> None:
        check_whole("k", self.k, "the number of items to keep")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp, axis = rows.xp, rows.axis
        # By rank, not by a comparison with the k-th largest: a compiler may compute a logit twice
        # and round it differently.
        frozen = _array.stop_gradient(rows.values)
        order = xp.argsort(frozen, axis=axis, descending=True, stable=True)
        rank = xp.argsort(order, axis=axis, stable=True)
        return softmax_of(prepare(xp.where(rank < self.k, rows.values, -math.inf), None, axis))
