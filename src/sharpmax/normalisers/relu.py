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
    """Remove what has a negative logit, and need no sum over the row at all.

        p_i = max(z_i, 0) / n^power

    A power of 1 is the published "relu over the sequence length" (arXiv 2309.08586, which tries
    other powers and functions too). The weights sum to anything from 0 up, and +inf stays infinite:
    nothing shares it out.
    """

    power: float = 1.0
    sums_to_one: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False
    fused: ClassVar[str | None] = "log-space trick: scores log p, output times exp(log-sum-exp)"

    def __post_init__(self) -> None:
        check_number("power", self.power, 0.0, "a finite number from 0 up")

    def weights(self, rows: Rows) -> Float[Array, "*rows items"]:
        xp = rows.xp
        logit = finite_values(rows)
        return xp.where(logit > 0, logit, 0.0) / xp.exp(self.power * log_items(rows))
