"""Weights that fall off as a power of the distance below a point above the maximum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_number, log_items, parameter
from sharpmax.normalisers._power import power_weights
from sharpmax.normalisers._scaling import scaled
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Stieltjes(RowNormaliser):
    """Weights that sum to one and fall off below the top like a power, not exponentially.

        p_i = (lambda - x_i)^(-power),    x = (scale * log n + bias) * z

    lambda > max x is the one number that makes the sum 1, found as a root and differentiated by the
    implicit function theorem. The default factor is 1; `scale=1.0` is the log-n scaled form. Equal
    to entmax of power * x at alpha = 1 - 1/power, below 1, which is how it is computed; so as the
    power grows it goes to softmax(power * x). No paper: known from a public repository
    (jtaylor-eng/probability-simplex-mappings).
    """

    power: Float[Array, "*rows 1"] | float = 1.0
    scale: Float[Array, "*rows 1"] | float = 0.0
    bias: Float[Array, "*rows 1"] | float = 1.0
    parameters: ClassVar[tuple[str, ...]] = ("power", "scale", "bias")

    def __post_init__(self) -> None:
        if _array.is_number(self.power):
            _array.positive_number("power", self.power)
        for name in ("scale", "bias"):
            check_number(name, getattr(self, name), -math.inf, "a finite number")

    def weights(self, rows: Rows) -> Float[Array, "*rows items"]:
        power, scale, bias = (
            parameter(name, getattr(self, name), rows) for name in self.parameters
        )
        if not isinstance(power, float):
            power = rows.xp.where(power > 0, power, math.nan)  # cannot be refused while traced
        factor = scale * log_items(rows) + bias
        return power_weights(scaled(rows, power * factor), -1.0 / power)
