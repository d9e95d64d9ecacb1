"""Scalable softmax whose factor also depends on the query."""

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
class QueryAwareScalableSoftmax(RowNormaliser):
    """Sharpen with the number of items, and let each query say how much.

        p = softmax((scale * log n + bias) * (1 + tanh(modulation)) * z)

    The tabicl package computes the first factor as a small network of log n, and the modulation as
    a small network of the query, which starts at 0; confirmed in its source (version 2.2.0,
    "qassmax-mlp"). Logits do not contain the query: compute the modulation and pass it as an array.
    A first factor of any other form is passed as `bias`, with a scale of 0. The package's
    elementwise variant scales each component of the query by another factor, which is no function
    of logits.

    Args:
        scale: the factor on log n; a number, or one per row.
        bias: what is added to the factor; a number, or one per row.
        modulation: what the query asks for; a number, or one per row. At 0 this is
            `ScalableSoftmax`.

    Raises:
        ValueError: if a number is not finite.
    """

    scale: Float[Array, "..."] | float = 0.43
    bias: Float[Array, "..."] | float = 0.0
    modulation: Float[Array, "..."] | float = 0.0
    parameters: ClassVar[tuple[str, ...]] = ("scale", "bias", "modulation")
    fused: ClassVar[str | None] = "scaled queries"

    def __post_init__(self) -> None:
        for name in self.parameters:
            check_number(name, getattr(self, name), -math.inf, "a finite number")

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        scale, bias, modulation = (
            parameter(name, getattr(self, name), rows) for name in self.parameters
        )
        by_query = (
            math.tanh(modulation) if isinstance(modulation, float) else rows.xp.tanh(modulation)
        )
        return softmax_of(scale_rows(rows, (scale * log_items(rows) + bias) * (1 + by_query)))
