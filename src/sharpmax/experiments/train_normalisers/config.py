"""Settings of the experiment, and the conditions that take part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Condition:
    """How a model is trained, and what is done to it afterwards.

    Attributes:
        summary: What it is, in words.
        normaliser: The name of the normaliser that the model is trained with.
        learn: What of it is learned; None for its default.
        afterwards: What is applied to the trained model: nothing, the paper's polynomial in all
            heads, or what `tune` learns.
        tune_sizes: Numbers of items of the prompts that `tune` learns from, if not those of the
            config.
    """

    summary: str
    normaliser: str
    learn: tuple[str, ...] | None = None
    afterwards: Literal["nothing", "paper", "tune"] = "nothing"
    tune_sizes: tuple[int, ...] = ()


CONDITIONS: dict[str, Condition] = {
    "softmax": Condition("trained with softmax", "softmax"),
    "softmax-tuned": Condition(
        "the softmax model, then `tune` on texts of 32 to 128 items", "softmax", afterwards="tune"
    ),
    "softmax-tuned-long": Condition(
        "the softmax model, then `tune` on texts of 128 to 512 items",
        "softmax",
        afterwards="tune",
        tune_sizes=(128, 256, 512),
    ),
    "softmax-tuned-longest": Condition(
        "the softmax model, then `tune` on texts of 512 to 2,048 items",
        "softmax",
        afterwards="tune",
        tune_sizes=(512, 1_024, 2_048),
    ),
    "softmax-paper": Condition(
        "the softmax model, then the paper's polynomial in all heads", "softmax", afterwards="paper"
    ),
    "scalable-softmax": Condition(
        "trained with scalable softmax, a scale and a bias per head", "scalable-softmax"
    ),
    "adaptive-temperature": Condition(
        "trained with the paper's adaptive temperature", "adaptive-temperature"
    ),
    "entmax": Condition("trained with 1.5-entmax", "entmax"),
}
"""By name. Five share the weights of the softmax model."""


@dataclass(frozen=True)
class Config:
    """Settings of the experiment."""

    conditions: tuple[str, ...] = tuple(CONDITIONS)
    """Names of `CONDITIONS`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One model per seed and normaliser. Seeds fix the weights and all data."""
    layers: int = 2
    """Number of layers of the decoder."""
    hidden: int = 128
    """Width of the decoder."""
    heads: int = 4
    """Number of heads of each layer."""
    keys: int = 64
    """Number of different keys."""
    values: int = 16
    """Number of different values."""
    context: int = 4_096
    """Positions over which the items of a training text are spread."""
    largest: int = 16
    """Number of items of the largest training text; the smallest has 2."""
    steps: int = 1_000
    """Training steps."""
    batch: int = 32
    """Texts per training step."""
    learning_rate: float = 3e-3
    """Largest learning rate of AdamW; it rises over 50 steps, and falls in the second half."""
    sample_every: int = 20
    """Steps between two samples of attention statistics."""
    sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1_024, 2_048)
    """Numbers of items in the tests."""
    questions: int = 8
    """Largest number of questions in a text."""
    texts: int = 24
    """Texts per size and seed in the tests."""
    tune_steps: int = 100
    """Steps of `tune`."""
    tune_sizes: tuple[int, ...] = (32, 64, 128)
    """Numbers of items of the prompts that `tune` learns from."""
    tune_from_tokens: int = 33
    """The number of tokens up to which `tune` changes nothing: no training text has more."""


QUICK = Config(
    seeds=(0,), steps=400, sizes=(8, 16, 32, 64, 128), texts=8, sample_every=10, tune_steps=20
)
"""A few minutes: the task is learned, with less to say about long texts."""
