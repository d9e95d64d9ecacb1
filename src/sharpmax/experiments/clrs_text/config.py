"""Settings of a training on CLRS-Text, and their checks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from sharpmax._errors import UserError
from sharpmax.policies import PAPER, Policy

SMALL = "small"
"""A Gemma with random weights and the shape that the settings give."""

ATTENTIONS: dict[str, Policy | None] = {"softmax": None, "adaptive": PAPER}
"""The policy that all heads of a model are trained with; None for plain attention."""
PRECISIONS = ("auto", "float32", "bfloat16")
OPTIMISERS = ("adamw", "muon")


@dataclass(frozen=True)
class Shape:
    """Shape of the small Gemma.

    Like Gemma 7B it has one key head per query head. With one key head for all, as in Gemma 2B, a
    model of this size takes twice as many steps to learn to compare numbers.
    """

    width: int = 128
    """Width of the residual stream."""
    layers: int = 4
    """Number of layers."""
    heads: int = 4
    """Number of query heads."""
    key_heads: int = 4
    """Number of key and value heads; `heads` is a multiple of it."""
    head_size: int = 32
    """Width of a head."""
    inner: int = 256
    """Width of the feed-forward layers."""
    context: int = 8192
    """Maximum number of tokens."""
    rope_theta: float = 10_000.0
    """Base of the rotary position embedding."""


@dataclass(frozen=True)
class Training:
    """How a decoder is trained.

    The settings of the paper's fine-tuning are not known. These are ours, for a small model.
    """

    attention: str = "softmax"
    """A name of `ATTENTIONS`."""
    model: str = SMALL
    """`small`, or the folder or hub name of a model whose weights are the starting point."""
    shape: Shape = field(default_factory=Shape)
    """Shape of the small model."""
    vocabulary: str = "pairs"
    """Vocabulary of the small model; other models have their own tokenizer."""
    steps: int = 20_000
    """Number of training steps."""
    batch: int = 32
    """Samples per step."""
    micro: int = 16
    """Maximum number of samples, over all devices, that are computed together."""
    optimiser: str = "adamw"
    """One of `OPTIMISERS`."""
    learning_rate: float = 1e-3
    """Maximum learning rate."""
    warm_up: int = 100
    """Steps in which the learning rate rises; it then falls to 0 like a cosine."""
    decay: float = 0.1
    """Weight decay of the matrices."""
    clip: float = 1.0
    """Maximum norm of a gradient."""
    growing: float = 0.0
    """Share of the steps in which the sizes are added one by one, the smallest first. The first
    sizes get most of these steps."""
    precision: str = "auto"
    """bfloat16 for matrix products if the hardware has it; weights and sums stay in float32."""
    saving_memory: bool = False
    """Whether to recompute activations instead of storing them."""

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        rising = min((step + 1) / self.warm_up, 1.0) if self.warm_up else 1.0
        falling = (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.learning_rate * rising * falling

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name, for files, without those that do not apply to the model."""
        left_out = () if self.model == SMALL else ("shape", "vocabulary")
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def check(self) -> None:
        """Raise a `UserError` for settings that are unknown or out of range."""
        for what, value, known in (
            ("attention", self.attention, tuple(ATTENTIONS)),
            ("precision", self.precision, PRECISIONS),
            ("optimiser", self.optimiser, OPTIMISERS),
        ):
            if value not in known:
                raise UserError(f"unknown {what} {value!r}: expected one of {', '.join(known)}")
        for what, number in (("steps", self.steps), ("batch", self.batch), ("micro", self.micro)):
            if number < 1:
                raise UserError(f"{what} must be at least 1, got {number}")
        heads, key_heads = self.shape.heads, self.shape.key_heads
        if key_heads < 1 or heads % key_heads:
            raise UserError(
                f"{heads} heads cannot share {key_heads} key heads evenly: heads must be a "
                "multiple of key_heads"
            )
        if not 0 <= self.growing < 1:
            raise UserError(f"growing must be at least 0 and below 1, got {self.growing}")
        if self.learning_rate <= 0:
            raise UserError(f"the learning rate must be above 0, got {self.learning_rate}")

    def check_processes(self, processes: int) -> None:
        """Raise a `UserError` if the processes cannot share the samples of a step evenly."""
        if self.batch % processes or self.micro % processes:
            raise UserError(
                f"a batch of {self.batch} samples, {self.micro} at a time, on {processes} devices: "
                "both must be multiples of the number of devices"
            )


def parse_shape(text: str) -> Shape:
    """Parse `width=64,layers=2`; the rest has its default, with one key head per query head."""
    defaults, given = asdict(Shape()), dict[str, Any]()
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in defaults or not value.replace(".", "", 1).isdecimal():
            raise UserError(
                f"shape {part.strip()!r}: expected one of {', '.join(defaults)} as name=number"
            )
        given[name] = type(defaults[name])(float(value))
    if "heads" in given:
        given.setdefault("key_heads", given["heads"])
    return Shape(**given)
