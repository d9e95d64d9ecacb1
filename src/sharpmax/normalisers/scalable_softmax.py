"""Softmax sharpened by the logarithm of the number of items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import (
    RowNormaliser,
    check_number,
    log_items,
    parameter,
    scale_rows,
    softmax_of,
)
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class ScalableSoftmax(RowNormaliser):
    """Keep the largest weight from fading as items are added: the base of the power is n itself.

        p = softmax((scale * log n + bias) * z),    or, without a bias,    p_i ~ n^(scale * z_i)

    A logit 1/scale above all others keeps a weight that does not go to 0 with n. SSMax of arXiv
    2501.19399, which learns a scale per head and finds that the bias can be left out.

    Args:
        scale: the factor on log n; a number, or one per row. 0.43 is from the paper's first figure.
        bias: what is added to the factor; a number, or one per row.

    Raises:
        ValueError: if a number is not finite.
    """

    scale: Float[Array, "..."] | float = 0.43
    bias: Float[Array, "..."] | float = 0.0
    parameters: ClassVar[tuple[str, ...]] = ("scale", "bias")
    fused: ClassVar[str | None] = "scaled queries"

    def __post_init__(self) -> None:
        check_number("scale", self.scale, -math.inf, "a finite number")
        check_number("bias", self.bias, -math.inf, "a finite number")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        scale, bias = (parameter(name, getattr(self, name), rows) for name in self.parameters)
        return softmax_of(scale_rows(rows, scale * log_items(rows) + bias))
