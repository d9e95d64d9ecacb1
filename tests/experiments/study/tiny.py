"""A study of a small random model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_data import provide_data

from hf.words import reader, word_tokenizer
from sharpmax.experiments.study import conditions, experiment, summary
from sharpmax.experiments.study.config import Config, Sizes
from sharpmax.hf.loading.loader import Loaded

SIZES = Sizes(
    prompts=6,
    names=(8, 16),
    short_names=2,
    questions=2,
    ruler=("niah_multikey_2",),
    ruler_tokens=(),
    items=5,
    essays=2,
    essay_tokens=200,
    steps=2,
)
CONFIG = Config(model="tiny", dtype="float32")


def provide(monkeypatch: pytest.MonkeyPatch, folder: Path, **sizes: object) -> list[str]:
    """Let the study measure a small model only; the list gets the data type of each loading."""
    provide_data(monkeypatch, folder / "data")
    only = {"tiny": replace(SIZES, **sizes)}  # type: ignore[arg-type]
    for module in (experiment, summary):
        monkeypatch.setattr(module, "MODELS", only)
    types: list[str] = []

    def load(name: str, *, device: str, dtype: str) -> Loaded:
        assert name == "tiny"
        types.append(dtype)
        return Loaded(reader(layers=2), word_tokenizer(), "a tiny model", ("random weights",))  # type: ignore[arg-type]

    monkeypatch.setattr(experiment, "load", load)
    monkeypatch.setattr(conditions, "load", load)
    return types
