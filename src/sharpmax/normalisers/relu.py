"""The positive part of the logit, divided by the number of items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, check_number, finite_values, log_items
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Relu(RowNormaliser):
    """Remove items with a negative logit, without any sum over the row.

        p_i = max(z_i, 0) / n^power

    A power of 1 is the published "relu over the sequence length" (arXiv 2309.08586, which tries
    other powers and functions too). The weights sum to any number from 0 up. A logit of +inf has
    an infinite weight.

    Args:
        power: the power of the number of items to divide by.

    Raises:
        ValueError: if the power is negative or not finite.
    """

    power: float = 1.0
    sums_to_one: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False
    fused: ClassVar[str | None] = "log-space trick: scores log p, output times exp(log-sum-exp)"

    def __post_init__(self) -> None:
        check_number("power", self.power, 0.0, "a finite number from 0 up")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        xp = rows.xp
        logit = finite_values(rows)
        return xp.where(logit > 0, logit, 0.0) / xp.exp(self.power * log_items(rows))
