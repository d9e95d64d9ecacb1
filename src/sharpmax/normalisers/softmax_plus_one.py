"""Softmax with a sink: one more logit in the denominator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, parameter, softmax_of
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class SoftmaxPlusOne(RowNormaliser):
    """Let a head attend to nothing instead of putting its weight on an item it does not need.

        p_i = exp(z_i) / (exp(sink) + sum_j exp(z_j))

    A sink of 0 puts a 1 in the denominator, which gives the method its name (no paper: E. Miller,
    "Attention is off by one", 2023). A learned sink per head is the sink of gpt-oss (arXiv
    2508.10925). The sink takes what is missing from 1. With sink = -inf this is softmax.

    Args:
        sink: the logit of the sink; a number, or one per row.

    Raises:
        ValueError: if the number is NaN.
    """

    sink: Float[Array, "..."] | float = 0.0
    sums_to_one: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ("sink",)
    fused: ClassVar[str | None] = "output times sigmoid(log-sum-exp - sink)"

    def __post_init__(self) -> None:
        if _array.is_number(self.sink) and self.sink != self.sink:
            raise ValueError("sink must be a logit, a number or -inf, got nan")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        # The sink is one more item at the end of the row, whose weight is then dropped. So special
        # rows (no items, infinities) are handled as for softmax.
        xp, axis = rows.xp, rows.axis
        sink = xp.zeros_like(rows.maximum) + parameter("sink", self.sink, rows)
        extended = prepare(xp.concat([rows.values, sink], axis=axis), None, axis)
        index = [slice(None)] * rows.values.ndim
        index[axis] = slice(0, rows.values.shape[axis])
        return softmax_of(extended)[tuple(index)]
