"""Settings of the comparison, and the conditions that take part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sharpmax.hf.tune.settings import STEPS
from sharpmax.policies import PAPER, LogLength, Policy

PLAIN = "plain"
TUNED = "tune-1"
"""The condition that all others are compared with, besides the plain model."""
SEEDS = ("tune-1", "tune-2", "tune-3")
"""The same tuning with different prompts."""


@dataclass(frozen=True)
class Recipe:
    """How a condition is made.

    Attributes:
        summary: What it is, in words.
        policy: The policy of all heads, for a condition without training.
        learns: What is trained on the stream of prompts of `tune`; None for nothing.
        options: What differs from the settings of `tune`.
        rank: The rank of low-rank weights.
        everything: Whether all cells are measured, or only those that tell laws apart.
    """

    summary: str
    policy: Policy | None = None
    learns: Literal["rates", "power", "offset", "lora"] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    everything: bool = True


CONDITIONS: dict[str, Recipe] = {
    PLAIN: Recipe("the model as it is"),
    "tune-1": Recipe("`sharpmax tune` with its defaults, seed 1", learns="rates"),
    "lora-8": Recipe("LoRA of rank 8 on the query projections", learns="lora", rank=8),
    "calibrate": Recipe("`sharpmax calibrate`: some heads, one rate"),
    "paper": Recipe("the paper's polynomial in all heads", PAPER),
    "log-length:128": Recipe("sharper with the logarithm of the length, all heads", LogLength(128)),
    "lora-1": Recipe("LoRA of rank 1 on the query projections", learns="lora", rank=1),
    "tune-2": Recipe("`sharpmax tune`, seed 2", learns="rates", options={"seed": 2}),
    "tune-3": Recipe("`sharpmax tune`, seed 3", learns="rates", options={"seed": 3}),
    "tune-32-heads": Recipe(
        "`sharpmax tune --max-heads 32`", learns="rates", options={"max_heads": 32}
    ),
    "tune-lookup": Recipe(
        "`sharpmax tune --task lookup`: one format only",
        learns="rates",
        options={"tasks": ("lookup",)},
    ),
    "law-power": Recipe("tuned with the law (n / 128) ** rate", learns="power", everything=False),
    "law-offset": Recipe(
        "tuned with a rate and an offset per head", learns="offset", everything=False
    ),
    "from-64": Recipe(
        "tuned from 64 tokens on", learns="rates", options={"from_tokens": 64}, everything=False
    ),
    "from-256": Recipe(
        "tuned from 256 tokens on", learns="rates", options={"from_tokens": 256}, everything=False
    ),
}
"""By name, the most telling first: a run that is stopped leaves what matters most."""


@dataclass(frozen=True)
class Config:
    """Settings of the comparison."""

    model: str = "smollm2"
    """Name, folder or GGUF file of a causal language model, as in `sharpmax.hf.load`."""
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    """Names of `CONDITIONS`; the plain model is always included."""
    calibration: str = "results/calibration-answers.json"
    """The file that `sharpmax calibrate` wrote, for the condition of that name."""
    names: tuple[int, ...] = (32, 64, 128, 16, 256)
    """Numbers of names to look up, in the order in which they are measured."""
    held_out_names: tuple[int, ...] = (32, 64)
    """The same in formats that were not tuned on."""
    short_names: int = 8
    """So few that the prompt is shorter than any that calibrations change."""
    answers: int = 320
    """Smallest number of questions of each task and length."""
    questions: int = 16
    """Largest number of questions per prompt."""
    passkeys: int = 50
    """Prompts that hide a passkey."""
    passkey_tokens: int = 1024
    """The length of each."""
    essays: int = 12
    """Essays of which the beginning is read."""
    essay_tokens: int = 1024
    """How much of each is read."""
    items: int = 200
    """Items of HellaSwag."""
    steps: int = STEPS
    """Steps of every training."""
    lora_learning_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """Each is tried; validation chooses, as it chooses the step."""
    seed: int = 0
    """Seed of the questions. Tuning uses other streams of random numbers."""
    device: str = "auto"
    """Device that runs the model."""
    dtype: str = "auto"
    """Data type of the model's weights."""
