"""Entmax whose sharpness grows with a learned power of the logarithm of the number of items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_number, log_items, parameter
from sharpmax.normalisers._scaling import scaled
from sharpmax.normalisers.entmax import entmax_of
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class AdaptiveScalableEntmax(RowNormaliser):
    """Keep few items in the support however many there are, by a learned law of the length.

        p = alpha-entmax((offset + scale * (log n)^exponent) * z)

    ASEntmax of arXiv 2506.16640 (delta, beta and gamma there), with alpha 1.5. There scale and
    exponent are functions of the token, softplus(w.x) and 2 tanh(v.x), which the logits do not
    hold: compute them and give them as arrays, one entry a row. A row of one item has weight 1.
    """

    alpha: Float[Array, "*rows 1"] | float = 1.5
    offset: Float[Array, "*rows 1"] | float = 1.0
    scale: Float[Array, "*rows 1"] | float = 1.0
    exponent: Float[Array, "*rows 1"] | float = 1.0
    sparse: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("offset", "scale", "exponent")

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 1.0, "a finite number from 1 (softmax) up")
        for name in self.parameters:
            check_number(name, getattr(self, name), -math.inf, "a finite number")

    def weights(self, rows: Rows) -> Float[Array, "*rows items"]:
        xp = rows.xp
        offset, scale, exponent = (
            parameter(name, getattr(self, name), rows) for name in self.parameters
        )
        # One item has weight 1 whatever the factor is, and log 1 = 0 to a negative power is not.
        length = log_items(rows)
        power = xp.exp(exponent * xp.log(xp.where(length > 0, length, 1.0)))
        factor = offset + scale * power
        return entmax_of(scaled(rows, factor), parameter("alpha", self.alpha, rows))
