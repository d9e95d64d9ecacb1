"""Models, conditions and sizes of the study, as docs/study.md lays them down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sharpmax.hf.tune.settings import STEPS

PLAIN = "plain"

CONDITIONS = {
    PLAIN: "the model as it is",
    "tune": "`sharpmax tune` with its defaults: one rate per head",
    "log-length:128": "log n / log 128 beyond 128 tokens, all heads",
    "paper": "the paper's polynomial of the entropy, all heads",
    "calibrate": "`sharpmax calibrate` with its defaults: some heads, one rate",
    "infoscale:128": "InfoScale from 128 tokens on, all heads",
    "yarn:128": "YaRN's factor by the length of the row, from 128 tokens on, all heads",
    "llama4:128": "Llama 4's steps of 128 tokens, all heads",
}
"""Summaries by name. Except for the plain model, `tune` and `calibrate`, a name is a policy as the
command line writes it. The most telling come first: a run that is stopped leaves what matters."""

Family = Literal["lookup", "ruler"]
FAMILIES: tuple[Family, ...] = ("lookup", "ruler")
"""What the primary tests are about."""

RULER = (
    "niah_single_2",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multivalue",
    "ruler_vt",
    "ruler_cwe",
    "ruler_fwe",
)


@dataclass(frozen=True)
class Sizes:
    """How much of everything is asked of a model.

    Attributes:
        prompts: Prompts per cell of lookup and RULER.
        names: Numbers of names to look up.
        short_names: So few that the prompt is shorter than any that calibrations change.
        questions: Questions per prompt of lookup.
        ruler: Tasks of RULER.
        ruler_tokens: Lengths of RULER's prompts.
        items: Items of HellaSwag.
        essays: Essays of which the beginning is read.
        essay_tokens: How much of each is read.
        steps: Steps of `tune`.
        save_memory: Whether `tune` saves memory.
    """

    prompts: int = 20
    names: tuple[int, ...] = (32, 128)
    short_names: int = 8
    questions: int = 8
    ruler: tuple[str, ...] = RULER
    ruler_tokens: tuple[int, ...] = (1024, 2048)
    items: int = 200
    essays: int = 12
    essay_tokens: int = 1024
    steps: int = STEPS
    save_memory: bool = False


MODELS = {
    "smollm2": Sizes(),
    "gemma-3-270m": Sizes(),
    "qwen2.5-coder-1.5b": Sizes(prompts=6, items=60, essays=4, steps=60, save_memory=True),
}
"""Sizes by the names of the catalogue. Qwen has fewer prompts, for the time that it takes."""


@dataclass(frozen=True)
class Config:
    """Settings of the study."""

    model: str | None = None
    """The model to measure now, of `MODELS`; None for all in turn."""
    seed: int = 0
    """Seed of the questions. Calibrations use other prompts."""
    device: str = "auto"
    """Device that runs the model."""
    dtype: str = "bfloat16"
    """Data type of the weights while conditions are measured."""
    calibration_dtype: str = "float32"
    """Data type of the weights while a calibration is made."""
