"""Each item weighed by itself, without a sum over the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import (
    RowNormaliser,
    check_number,
    finite_values,
    log_items,
    parameter,
)
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Sigmoid(RowNormaliser):
    """Weigh each item by its own logit, so that other items cannot take its weight away.

        p_i = 1 / (1 + exp(-(z_i + bias - log n)))

    The log n keeps the weights of equal logits near 1/n, as with softmax; the other items have no
    other influence. The weights sum to any number from 0 to n. arXiv 2409.04431.

    Args:
        bias: what is added to every logit; a number, or one per row.

    Raises:
        ValueError: if the number is not finite.
    """

    bias: Float[Array, "..."] | float = 0.0
    sums_to_one: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ("bias",)
    fused: ClassVar[str | None] = "log-space trick: scores log p, output times exp(log-sum-exp)"

    def __post_init__(self) -> None:
        check_number("bias", self.bias, -math.inf, "a finite number")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        logit = finite_values(rows) + parameter("bias", self.bias, rows) - log_items(rows)
        # exp of -|logit| cannot overflow. Not by abs, whose gradient at 0 is 0.
        small = _array.exp(-xp.where(logit < 0, -logit, logit), xp)
        return xp.where(logit < 0, small, 1.0) / (1.0 + small)
