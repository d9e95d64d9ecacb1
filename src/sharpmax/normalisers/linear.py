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
    """Attention without any function of the logits: keys times values can be summed beforehand.

        p_i = z_i / n

    Weights of either sign that sum to the mean of the logits. Divided by n as arXiv 2309.08586 does
    with the identity; the un-normalised attention that arXiv 2410.01104 speaks of leaves n out, so
    that the output's size grows with the row.
    """

    sums_to_one: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    fused: ClassVar[str | None] = "keys times values first"

    def weights(self, rows: Rows) -> Float[Array, "*rows items"]:
        return finite_values(rows) / rows.xp.exp(log_items(rows))
