"""How a decoder is trained on CLRS-Text: every setting, and which of them cannot be."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text.arms import ATTENTIONS

SMALL = "small"
"""A Gemma made here, with random weights, of the shape that the settings say."""

PRECISIONS = ("auto", "float32", "bfloat16")
OPTIMISERS = ("adamw", "muon")


@dataclass(frozen=True)
class Shape:
    """Of a small Gemma: as Gemma 7B, a key head for each query head. With one for all, as in Gemma
    2B, a model as small as this one takes twice as many steps to learn to compare numbers.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    key_heads: int = 4
    head_size: int = 32
    inner: int = 256
    """Width of the feed-forward layers."""
    context: int = 8192
    rope_theta: float = 10_000.0


@dataclass(frozen=True)
class Training:
    """Of the paper's own fine-tuning no settings are known; these are ours, for a small model."""

    attention: str = "softmax"
    """Which of `ATTENTIONS` the model is trained with."""
    model: str = SMALL
    """Or a folder, or a name on the hub: then its weights are where training begins."""
    shape: Shape = field(default_factory=Shape)
    """Of the small model."""
    vocabulary: str = "pairs"
    """Of the small model; others bring their own tokenizer."""
    steps: int = 20_000
    batch: int = 32
    """Samples a step."""
    micro: int = 16
    """Samples at a time, over all devices, at most: only those of nearly one length."""
    optimiser: str = "adamw"
    """One of `OPTIMISERS`."""
    learning_rate: float = 1e-3
    warm_up: int = 100
    """Steps in which the rate rises; it then falls to 0 like a cosine."""
    decay: float = 0.1
    clip: float = 1.0
    """The largest norm of a gradient."""
    growing: float = 0.0
    """Share of the steps in which the sizes are let in one after the other, the smallest first, and
    the first ones for longest."""
    precision: str = "auto"
    """bfloat16 in the products, if the hardware has it; weights and sums stay in float32."""
    saving_memory: bool = False
    """Whether to compute activations twice rather than keep them."""

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        rising = min((step + 1) / self.warm_up, 1.0) if self.warm_up else 1.0
        falling = (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.learning_rate * rising * falling

    @property
    def stated(self) -> dict[str, Any]:
        """By name, for files; without what does not concern this model."""
        left_out = () if self.model == SMALL else ("shape", "vocabulary")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


def shape_of(text: str) -> Shape:
    """What `width=64,layers=2` says; the rest is as it usually is: a key head for each head."""
    usual, given = asdict(Shape()), dict[str, Any]()
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in usual or not value.replace(".", "", 1).isdecimal():
            raise UserError(
                f"shape {part.strip()!r}: expected one of {', '.join(usual)} as name=number"
            )
        given[name] = type(usual[name])(float(value))
    if "heads" in given:
        given.setdefault("key_heads", given["heads"])
    return Shape(**given)


def check(training: Training) -> None:
    """Refuse settings that cannot be."""
    for what, value, known in (
        ("attention", training.attention, tuple(ATTENTIONS)),
        ("precision", training.precision, PRECISIONS),
        ("optimiser", training.optimiser, OPTIMISERS),
    ):
        if value not in known:
            raise UserError(f"unknown {what} {value!r}: expected one of {', '.join(known)}")
    for what, number in (
        ("steps", training.steps),
        ("batch", training.batch),
        ("micro", training.micro),
    ):
        if number < 1:
            raise UserError(f"{what} must be at least 1, got {number}")
    shape = training.shape
    if shape.key_heads < 1 or shape.heads % shape.key_heads:
        raise UserError(
            f"{shape.heads} heads cannot share {shape.key_heads} key heads evenly: give heads that "
            "are a multiple of key_heads"
        )
    if not 0 <= training.growing < 1:
        raise UserError(f"growing is a share of the steps below 1, got {training.growing}")
    if training.learning_rate <= 0:
        raise UserError(f"the learning rate must be above 0, got {training.learning_rate}")


def check_shares(training: Training, processes: int) -> None:
    """Refuse steps that cannot be shared out evenly."""
    if training.batch % processes or training.micro % processes:
        raise UserError(
            f"a batch of {training.batch} samples, {training.micro} at a time, on {processes} "
            "devices: both must be multiples of the number of devices"
        )
