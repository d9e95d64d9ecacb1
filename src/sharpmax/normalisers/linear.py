"""The logit itself as the weight, divided by the number of items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax._array import Array
from sharpmax.normalisers._base import RowNormaliser, finite_values, log_items
from sharpmax.ops._rows import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Linear(RowNormaliser):
    """Attend without any function of the logits, so that keys times values can be summed first.

        p_i = z_i / n

    The weights have either sign and sum to the mean of the logits. arXiv 2309.08586 divides by n in
    the same way. The un-normalised attention that arXiv 2410.01104 mentions leaves n out, so that
    the size of the output grows with the row.
    """

    sums_to_one: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    fused: ClassVar[str | None] = "keys times values first"

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        return finite_values(rows) / rows.xp.exp(log_items(rows))
