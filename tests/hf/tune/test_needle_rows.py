"""Weights and ranks of the rows that begin an answer are those of eager attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sharpmax.hf as shf
from hf.families import FAMILIES, WINDOW
from hf.small import random_tokens, tokenizer
from sharpmax import Constant
from sharpmax.hf.evaluate.tasks import TaskPrompt
from sharpmax.hf.tune.needle_rows import (
    ELSEWHERE,
    FIRST,
    HIDDEN,
    LAST,
    LAST_TOKENS,
    NEEDLE,
    NUMBER,
    REST,
    measure_needle_rows,
    needle_positions,
    token_kinds,
)
from sharpmax.theory.growth import GAPS

CONTEXT = 12


def make_prompt():
    """Return a prompt with a needle that a window of five tokens sees, and one that it hides."""
    tokens = random_tokens(40).remainder(50).tolist()
    return TaskPrompt(
        tuple(tokens[:CONTEXT]),
        (tuple(tokens[12:15]), tuple(tokens[15:20])),
        (tuple(tokens[20:22]), tuple(tokens[22:26])),
        needles=((10, 12), (3, 6)),
        copies=((), ((7, 10),)),
        numbers=((3, 6), (7, 10), (10, 12)),
    )


def eager_rows(model, prompt):
    """Return the weights that eager attention has at the measured positions, by question."""
    rows = []
    for question, answer, position in zip(
        prompt.questions, prompt.answers, needle_positions(prompt), strict=True
    ):
        ids = torch.tensor([[*prompt.context, *question, *answer]])
        with torch.no_grad():
            layers = model(input_ids=ids, output_attentions=True, use_cache=False).attentions
        rows.append(torch.stack([layer[0, :, CONTEXT + position] for layer in layers]).numpy())
    return rows


FAMILY_NAMES = ["Llama", "Mistral", "Gemma 2", "Gemma 3", "gpt-oss"]


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_rows_are_those_of_eager_attention(name):
    model, prompt = FAMILIES[name].make("eager"), make_prompt()
    measured = measure_needle_rows(model, tokenizer(), prompt)
    kinds = token_kinds(prompt)
    # Weights are stored in float32, and float32 models differ by the rounding of two layers.
    tolerance = 2e-5 if FAMILIES[name].dtype == torch.float32 else 2e-7
    hidden = 0
    for question, weights in enumerate(eager_rows(model, prompt)):
        kind = kinds[question, : weights.shape[-1]]
        visible = np.isfinite(
            np.log(weights, where=weights > 0, out=np.full_like(weights, -np.inf))
        )
        needle = weights[..., kind == NEEDLE]
        np.testing.assert_allclose(measured.weight[question], needle.sum(-1), atol=tolerance)
        np.testing.assert_allclose(
            measured.answer_weight[question], weights[..., kind <= REST].sum(-1), atol=tolerance
        )
        best = needle.max(-1)
        found = (visible & (kind == NEEDLE)).any(-1)
        rank = np.where(found, 1 + (weights > best[..., None]).sum(-1), 0)
        np.testing.assert_array_equal(measured.rank[question], rank)
        winner = np.where(found, kind[weights.argmax(-1)], HIDDEN)
        np.testing.assert_array_equal(measured.winner[question], winner)
        hidden += (rank == 0).sum()
        others = np.where((kind > REST) & (kind != FIRST) & visible, weights, 0.0)
        for place in np.argwhere(rank == 1):
            with np.errstate(divide="ignore"):
                gaps = np.log(best[*place]) - np.log(others[*place])
            expected = 1 + (gaps[:, None] <= np.array(GAPS)).sum(0)
            assert np.abs(measured.competitors[question][*place] - expected).max() <= 1  # rounding
        assert (measured.competitors[question][rank != 1] == 0).all()
    assert np.ptp(measured.weight) > 0.01
    assert (hidden > 0) == (name in ("Mistral", "Gemma 2", "Gemma 3", "gpt-oss"))


@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_rows_of_a_sharpened_layer_are_sharpened(name):
    model, prompt = FAMILIES[name].make("eager"), make_prompt()
    last = model.config.num_hidden_layers - 1
    with shf.sharpen(model, Constant(1.7), layers=[last]):
        measured = measure_needle_rows(model, tokenizer(), prompt)
    kinds = token_kinds(prompt)
    for question, weights in enumerate(eager_rows(model, prompt)):
        sharper = weights[last].astype(np.float64) ** 1.7
        sharper /= sharper.sum(-1, keepdims=True)
        kind = kinds[question, : weights.shape[-1]]
        expected = sharper[..., kind == NEEDLE].sum(-1)
        np.testing.assert_allclose(measured.weight[question, last], expected, atol=2e-5)


def test_a_prompt_without_context_is_measured_too():
    model = FAMILIES["Mistral"].make("eager")
    tokens = random_tokens(20).remainder(50).tolist()
    question = tuple(tokens[:14])
    whole = TaskPrompt((), (question,), (tuple(tokens[14:16]),), needles=((11, 13),))
    split = TaskPrompt(question[:-1], (question[-1:],), whole.answers, needles=((11, 13),))
    first, second = (measure_needle_rows(model, tokenizer(), one) for one in (whole, split))
    np.testing.assert_allclose(first.weight, second.weight, atol=1e-6)
    np.testing.assert_array_equal(first.rank, second.rank)
    assert WINDOW < 14


def test_an_answer_may_begin_with_a_token_that_is_not_copied():
    # The first answer is as long as its needle; the second begins with a token for the space.
    assert needle_positions(make_prompt()) == [2, 5]


def test_the_kinds_of_tokens():
    context = tuple(range(60))
    prompt = TaskPrompt(
        context,
        ((1, 2),),
        ((3, 4, 5),),
        needles=((20, 23),),
        copies=(((40, 43),),),
        numbers=((5, 8), (20, 23), (40, 43)),
    )
    (kinds,) = token_kinds(prompt)
    assert len(kinds) == 65
    assert kinds[0] == FIRST
    assert set(kinds[5:8]) == {NUMBER}
    for start in (20, 40):
        assert kinds[start] == NEEDLE
        assert set(kinds[start + 1 : start + 3]) == {REST}
    query = 60 + 1
    assert kinds[query] == kinds[query + 1 - LAST_TOKENS] == LAST
    assert kinds[query - LAST_TOKENS] == ELSEWHERE
