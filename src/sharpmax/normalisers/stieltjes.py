"""Weights that fall off as a power of the distance below a point above the maximum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_number, log_items, parameter, scale_rows
from sharpmax.normalisers._power import power_weights
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Stieltjes(RowNormaliser):
    """Give weights that sum to one and fall off below the top like a power, not exponentially.

        p_i = (lambda - x_i)^(-power),    x = (scale * log n + bias) * z

    lambda > max x is the one number that makes the sum 1. It is found as a root and differentiated
    by the implicit function theorem. The default factor on z is 1; `scale=1.0` is the log-n scaled
    form. Stieltjes equals entmax of power * x at alpha = 1 - 1/power, which is how it is computed,
    so it goes to softmax(power * x) as the power grows. No paper: known from a public repository
    (jtaylor-eng/probability-simplex-mappings).

    Args:
        power: the power q, positive; a number, or one per row.
        scale: the factor on log n; a number, or one per row.
        bias: the factor without any length; a number, or one per row.

    Raises:
        ValueError: if a number is not finite, or the power is not positive.
    """

    power: Float[Array, "..."] | float = 1.0
    scale: Float[Array, "..."] | float = 0.0
    bias: Float[Array, "..."] | float = 1.0
    parameters: ClassVar[tuple[str, ...]] = ("power", "scale", "bias")

    def __post_init__(self) -> None:
        if _array.is_number(self.power):
            _array.positive_number("power", self.power)
        for name in ("scale", "bias"):
            check_number(name, getattr(self, name), -math.inf, "a finite number")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        power, scale, bias = (
            parameter(name, getattr(self, name), rows) for name in self.parameters
        )
        if not isinstance(power, float):
            # An array cannot be checked while traced, so its row becomes NaN.
            power = rows.xp.where(power > 0, power, math.nan)
        factor = scale * log_items(rows) + bias
        return power_weights(scale_rows(rows, power * factor), -1.0 / power)
