"""Diagnoses with known causes: made by `diagnose`, from rows that no model has computed."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.small import llama, tokenizer
from sharpmax.hf.evaluate.scoring import Scores
from sharpmax.hf.tune.needle_rows import HIDDEN, NEEDLE, WINNERS, NeedleRows
from sharpmax.theory.growth import GAPS

# sharpmax.hf.diagnose is the function, so the module needs an explicit import.
module = import_module("sharpmax.hf.tune.diagnose")

LENGTHS = (2, 4, 8)


def competitors(winner, length):
    """Return as many tokens as the prompt has names, five nats below each answer ranked first."""
    near = np.where(np.array(GAPS) > 5, 1 + 10 * LENGTHS[length], 1)
    return np.where(winner[..., None] == NEEDLE, near, 0)


def diagnosis(
    monkeypatch: pytest.MonkeyPatch,
    weights: tuple[float, ...],
    shares: tuple[float, ...],
    instead: str = "another number",
    heads: int = 2,
) -> shf.Diagnosis:
    """Return a diagnosis of a model whose heads have these weights at the three lengths.

    At each length, `shares` of the questions rank the answer first and `instead` the others. Only
    the first `heads` of layer 1 ever find the answer.
    """
    model = llama(context=700)
    calls = iter(np.repeat(range(len(LENGTHS)), 4))

    def make_rows(*_):
        length = next(calls)
        weight = np.full((2, 3, 4), 0.01, np.float32)
        winner = np.full((2, 3, 4), WINNERS.index("first token"), np.int8)
        first = np.arange(2) < round(2 * shares[length])
        kind = WINNERS.index(instead)
        for head in range(heads):
            weight[:, 1, head] = np.where(first, weights[length], 0.0)
            winner[:, 1, head] = np.where(first, NEEDLE, kind)
        rank = np.where(winner == NEEDLE, 1, np.where(winner == HIDDEN, 0, 5)).astype(np.int32)
        scores = Scores(first, np.zeros(2))
        return NeedleRows(weight, weight, rank, winner, competitors(winner, length), scores)

    with monkeypatch.context() as patch:
        patch.setattr(module, "measure_needle_rows", make_rows)
        return shf.diagnose(
            model, tokenizer(), lengths=LENGTHS, prompts=4, questions=2, name="made up"
        )
