"""Logits times a factor of the row, such as one that grows with the number of items."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sharpmax._array import Array
from sharpmax.ops._rows import NOTHING, Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


def scaled(rows: Rows, factor: Float[Array, "*rows 1"] | float) -> Rows:
    """The rows of factor * logits, up to a shift of the row.

    Prepared anew: a learned factor may turn negative, and then the top is another item.
    """
    # By the offset, which is finite: -inf times a factor of 0 would be NaN, in its gradient too.
    product = rows.xp.where(rows.offset <= NOTHING, -math.inf, rows.offset * factor)
    return prepare(product, None, rows.axis)


def softmax_of(rows: Rows) -> Float[Array, "*rows items"]:
    """exp(offset) / sum, in the type of the statistics; zeros for a row without items."""
    exponentials = rows.exponentials(1.0)
    return exponentials / rows.nonzero(rows.sum(exponentials))
