"""Softmax, the normaliser that all others are compared with."""

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
    """Weights that sum to one, larger logits getting exponentially more.

        p_i = exp(z_i / temperature) / sum_j exp(z_j / temperature)

    The distribution that maximises `<p, z> + temperature * H(p)`. For bounded logits every weight
    goes to 0 like 1/n (Theorem 2.2 of arXiv 2410.01104). The same as `sharpmax.softmax`.
    """

    temperature: Float[Array, "*rows 1"] | float = 1.0
    parameters: ClassVar[tuple[str, ...]] = ("temperature",)
    fused: ClassVar[str | None] = "scaled queries"

    def __call__(
        self,
        logits: Float[Array, "*rows items"],
        *,
        where: Bool[Array, "*rows items"] | None = None,
        axis: int = -1,
    ) -> Float[Array, "*rows items"]:
        return ops.softmax(logits, temperature=self.temperature, where=where, axis=axis)
