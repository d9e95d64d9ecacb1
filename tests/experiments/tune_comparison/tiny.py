"""A comparison on a small random model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf.small import llama, tokenizer
from sharpmax.experiments.tune_comparison.config import Config
from sharpmax.hf.loading.loader import Loaded
from sharpmax.hf.tune import learning, outcome

CONFIG = Config(
    conditions=("plain", "tune-1", "paper", "law-power"),
    names=(16, 8),
    held_out_names=(8,),
    short_names=4,
    answers=24,
    questions=4,
    passkeys=6,
    passkey_tokens=300,
    essays=2,
    essay_tokens=200,
    items=5,
    steps=4,
    lora_learning_rates=(1e-3, 1e-2),
)


def small(**changes: object) -> Config:
    return replace(CONFIG, **changes)  # type: ignore[arg-type]


def loaded() -> Loaded:
    return Loaded(llama(layers=2, context=4096), tokenizer(), "tiny", ("random weights",))  # type: ignore[arg-type]


def accept_any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model gains little in four steps: count that as enough."""
    monkeypatch.setattr(learning, "MIN_STANDARD_ERRORS", -1e9)
    monkeypatch.setattr(outcome, "MIN_RATE", 0.0)
