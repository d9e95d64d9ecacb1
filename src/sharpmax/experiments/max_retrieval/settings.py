"""How a head is trained: every setting, and which of them cannot be."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax.experiments.max_retrieval import data
from sharpmax.experiments.max_retrieval.designs import DESIGNS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LOSS_EVERY = 100
"""Steps between two recorded losses, each the mean of the steps since the one before; also how many
steps are compiled into one call."""

WARMING_UP = 0.05
"""Share of the steps in which the learning rate rises from 0, where it changes at all."""


@dataclass(frozen=True)
class Training:
    """How a head is trained: the paper's settings where they are known (docs/max_retrieval.md)."""

    task: str = "max"
    steps: int = 100_000
    batch: int = 128
    smallest: int = 5
    largest: int = 16
    learning_rate: float = 1e-3
    decay: float = 1e-3
    decoupled: bool = True
    """Whether the decay shrinks the weights by itself (AdamW) or is a term of the loss (L2)."""
    scaled: bool = True
    """Whether logits are divided by the square root of the width."""
    kept_at: tuple[int, ...] = (20_000, 50_000)
    """Steps whose weights are kept, besides the last."""
    design: str = "softmax"
    """The name of the head's design."""
    narrowest: float = 1.0
    """The smallest width of the range of a set's priorities: see `data.draw`."""
    falling: bool = False
    """Whether the learning rate rises and then falls to 0 like a cosine, or stays what it is."""

    def rates(self, steps: Int[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
        """The learning rate of each of these steps."""
        if not self.falling:
            return np.full(len(steps), self.learning_rate, np.float32)
        done = steps / self.steps
        rising = np.minimum((done + 1 / self.steps) / WARMING_UP, 1.0)
        falling = (1 + np.cos(np.pi * done)) / 2
        return np.asarray(self.learning_rate * rising * falling, np.float32)

    @property
    def stated(self) -> dict[str, Any]:
        """The settings by name, for files. Those that were added later are left out where they are
        as they always were: what was trained before is still found, and keeps its hash.
        """
        usual = {name: getattr(Training, name) for name in ("design", "narrowest", "falling")}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in usual or value != usual[name]
        }

    @property
    def kind(self) -> Training:
        """What a compiled step depends on: those that differ in the rest share it."""
        return replace(self, steps=LOSS_EVERY, learning_rate=0.0, kept_at=(), falling=False)


def check(training: Training) -> None:
    """Refuse settings that cannot be."""
    for what, name, known in (
        ("task", training.task, data.TASKS),
        ("design", training.design, DESIGNS),
    ):
        if name not in known:
            raise UserError(f"unknown {what} {name!r}: expected one of {', '.join(known)}")
    if not 0 < training.narrowest <= 1:
        raise UserError(
            f"the narrowest range of priorities is above 0 and at most 1, got {training.narrowest}"
        )
    uneven = [step for step in (training.steps, *training.kept_at) if step % LOSS_EVERY]
    if training.steps < 1 or uneven:
        raise UserError(
            f"training takes a positive multiple of {LOSS_EVERY} steps, got "
            f"{uneven[0] if uneven else training.steps}"
        )
