"""The cells of the comparison: enough questions, and each its own inputs."""

from __future__ import annotations

import numpy as np
import pytest
from small_data import provide_data
from tune_comparison.tiny import loaded, small

from sharpmax.experiments.tune_comparison import cells
from sharpmax.hf.evaluate.tasks import HELD_OUT_TASKS


@pytest.fixture
def made(monkeypatch, tmp_path):
    provide_data(monkeypatch, tmp_path / "data")
    small_model = loaded()
    made = cells.make_cells(small(), small_model.model, small_model.tokenizer)
    return small_model, {cell.name: cell for cell in made}


def test_every_cell_has_enough_questions(made):
    _, by_name = made
    assert set(by_name) == {
        "lookup-16", "lookup-8", "lookup-4", "essays", "guard", "passkey-300", "hellaswag",
        *(f"{task}-8" for task in HELD_OUT_TASKS),
    }  # fmt: skip
    for cell in by_name.values():
        if cell.group in ("lookup", "held-out", "short"):
            assert sum(len(prompt.questions) for prompt in cell.inputs) >= 24
    assert len(by_name["passkey-300"].inputs) == 6
    assert [len(chunk) for chunk in by_name["essays"].inputs] == [200, 200]
    assert len({cell.sha256 for cell in by_name.values()}) == len(by_name)


def test_questions_are_scored_with_their_log_probability(made):
    small_model, by_name = made
    measured = by_name["lookup-8"].measure(small_model.model, small_model.tokenizer)
    assert np.shape(measured["right"]) == np.shape(measured["log_probability"]) == (6, 4)
    assert (np.asarray(measured["log_probability"]) < 0).all()
