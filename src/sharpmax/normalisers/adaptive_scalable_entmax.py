"""Entmax sharpened by a learned law of the number of items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_number, log_items, parameter, scale_rows
from sharpmax.normalisers.entmax import entmax_of
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class AdaptiveScalableEntmax(RowNormaliser):
    """Keep few items in the support however many there are, by a learned law of the length.

        p = alpha-entmax((offset + scale * (log n)^exponent) * z)

    ASEntmax of arXiv 2506.16640 (delta, beta and gamma there), with alpha 1.5. In the paper scale
    and exponent are functions of the token, softplus(w.x) and 2 tanh(v.x), which the logits do not
    contain: compute them and pass them as arrays. A row of one item has weight 1.

    Args:
        alpha: as in `Entmax`; a number of 1 or more, or one per row.
        offset: the factor without any length; a number, or one per row.
        scale: the factor on the law of the length; a number, or one per row.
        exponent: the power of log n; a number, or one per row.

    Raises:
        ValueError: if a number is not finite, or alpha is below 1.
    """

    alpha: Float[Array, "..."] | float = 1.5
    offset: Float[Array, "..."] | float = 1.0
    scale: Float[Array, "..."] | float = 1.0
    exponent: Float[Array, "..."] | float = 1.0
    sparse: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("offset", "scale", "exponent")

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 1.0, "a finite number from 1 (softmax) up")
        for name in self.parameters:
            check_number(name, getattr(self, name), -math.inf, "a finite number")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        offset, scale, exponent = (
            parameter(name, getattr(self, name), rows) for name in self.parameters
        )
        # One item has weight 1 whatever the factor is, and log 1 = 0 to a negative power is not.
        length = log_items(rows)
        power = xp.exp(exponent * xp.log(xp.where(length > 0, length, 1.0)))
        factor = offset + scale * power
        return entmax_of(scale_rows(rows, factor), parameter("alpha", self.alpha, rows))
