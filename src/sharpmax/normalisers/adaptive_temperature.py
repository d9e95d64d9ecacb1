"""Softmax sharpened according to each row's own entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import ops
from sharpmax._array import Array
from sharpmax.normalisers._base import Normaliser
from sharpmax.policies import PAPER, Policy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class AdaptiveTemperature(Normaliser):
    """Keep a trained head sharp on more items than it was trained with, by its entropy.

        p = softmax(policy(H, n) * z),    H = entropy(z),    n = number of items

    With the default policy this is Figure 4 of arXiv 2410.01104; nothing is learned. The same as
    `sharpmax.adaptive_temperature_softmax`.

    Args:
        policy: function of (entropy, number of items) that returns the inverse temperature.
    """

    policy: Policy = PAPER
    fused: ClassVar[str | None] = "scaled queries, after a pass that finds the entropy"

    def __call__(
        self,
        logits: Float[Array, "..."],
        *,
        where: Bool[Array, "..."] | None = None,
        axis: int = -1,
    ) -> Float[Array, "..."]:
        return ops.adaptive_temperature_softmax(logits, policy=self.policy, where=where, axis=axis)
