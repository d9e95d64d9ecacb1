"""Softmax, with which all other normalisers are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import ops
from sharpmax._array import Array
from sharpmax.normalisers._base import Normaliser

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Softmax(Normaliser):
    """Give weights that sum to one and grow exponentially with the logit.

        p_i = exp(z_i / temperature) / sum_j exp(z_j / temperature)

    This is the distribution that maximises `<p, z> + temperature * H(p)`. For bounded logits every
    weight goes to 0 like 1/n (Theorem 2.2 of arXiv 2410.01104). The same as `sharpmax.softmax`.

    Args:
        temperature: a positive number, or one per row.
    """

    temperature: Float[Array, "..."] | float = 1.0
    parameters: ClassVar[tuple[str, ...]] = ("temperature",)
    fused: ClassVar[str | None] = "scaled queries"

    def __call__(
        self,
        logits: Float[Array, "..."],
        *,
        where: Bool[Array, "..."] | None = None,
        axis: int = -1,
    ) -> Float[Array, "..."]:
        return ops.softmax(logits, temperature=self.temperature, where=where, axis=axis)
