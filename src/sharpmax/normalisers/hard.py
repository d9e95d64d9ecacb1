"""All weight to the largest logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, positions, softmax_of
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Hard(RowNormaliser):
    """Escape dispersion altogether: attend to one item, however many there are.

        p_i = 1 for the largest logit, 0 elsewhere

    This is the limit of softmax as the temperature goes to 0, except for ties: of several largest
    logits (or several +inf) the first along the axis takes all. The gradient is that of softmax
    ("straight-through", arXiv 1308.3432), since the true one is 0 everywhere.
    """

    sparse: ClassVar[bool] = True
    fused: ClassVar[str | None] = "mask, after a pass that finds the largest"

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        best = xp.argmax(_array.stop_gradient(rows.values), axis=rows.axis, keepdims=True)
        index = positions(rows.values, rows.axis, xp)
        chosen = xp.astype(index == xp.astype(best, index.dtype), rows.values.dtype)
        soft = softmax_of(rows)
        # The difference is exactly 0, so the answer is exactly 0 or 1.
        return chosen + (soft - _array.stop_gradient(soft))
