"""Scoring: two passes with a shared cache equal one pass over each whole text."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import sharpmax.hf as shf
from hf.families import FAMILIES, assert_close
from hf.small import llama, random_tokens, tokenizer
from sharpmax import PAPER, LogLength
from sharpmax._errors import UserError
from sharpmax.hf.evaluate import scoring
from sharpmax.hf.evaluate.scoring import (
    answer_logits,
    read_context,
    require_language_model,
    score_answers,
)
from sharpmax.hf.evaluate.tasks import TaskPrompt

DECODERS = sorted(name for name, family in FAMILIES.items() if family.kind == "decoder")


def make_prompt(tokens, context, *lengths):
    """Split tokens into a context and (question, answer) pairs of these lengths."""
    rest, pieces = list(tokens[context:]), []
    for length in [length for pair in lengths for length in pair]:
        pieces.append(tuple(rest[:length]))
        rest = rest[length:]
    return TaskPrompt(tuple(tokens[:context]), tuple(pieces[::2]), tuple(pieces[1::2]))


@torch.no_grad()
def logits_in_one_pass(model, prompt):
    """The same logits from each whole text, without a cache."""
    logits = []
    for question, answer in zip(prompt.questions, prompt.answers, strict=True):
        ids = torch.tensor([[*prompt.context, *question, *answer]])
        logits.append(model(input_ids=ids, use_cache=False).logits[0, -len(answer) - 1 :])
    return logits


@pytest.mark.parametrize("sharpened", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_two_passes_equal_one(name, sharpened):
    model = FAMILIES[name].make("sdpa" if name == "Llama" else "eager")
    prompt = make_prompt(random_tokens(40).remainder(50).tolist(), 9, (3, 2), (1, 1), (4, 3))
    context = shf.sharpen(model, PAPER) if sharpened else torch.no_grad()
    with torch.no_grad(), context:
        two = answer_logits(model, prompt, read_context(model, prompt))
        one = logits_in_one_pass(model, prompt)
    for found, expected in zip(two, one, strict=True):
        assert found.shape == expected.shape
        assert_close(found, expected)


@pytest.mark.parametrize("policy", [None, PAPER, LogLength(4)], ids=["plain", "paper", "log"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_context_in_chunks_equals_one_pass(name, policy, monkeypatch):
    """Windows end inside a chunk, in the chunk before, and further back."""
    monkeypatch.setattr(scoring, "CHUNK", 4)
    model = FAMILIES[name].make("sdpa" if name == "Llama" else "eager")
    prompt = make_prompt(random_tokens(40).remainder(50).tolist(), 22, (3, 2), (1, 1))
    with torch.no_grad(), nullcontext() if policy is None else shf.sharpen(model, policy):
        two = answer_logits(model, prompt, read_context(model, prompt))
        one = logits_in_one_pass(model, prompt)
    for found, expected in zip(two, one, strict=True):
        assert_close(found, expected)


def test_an_empty_context():
    model = llama()
    prompt = make_prompt(random_tokens(20).tolist(), 0, (5, 2), (6, 3))
    with torch.no_grad():
        two = answer_logits(model, prompt, read_context(model, prompt))
    for found, expected in zip(two, logits_in_one_pass(model, prompt), strict=True):
        assert_close(found, expected)


def test_right_is_what_greedy_decoding_writes():
    model, characters = llama(), tokenizer()
    seen = set()
    for seed in range(12):
        tokens = random_tokens(12, seed=seed)
        written = model.generate(
            tokens[None], max_new_tokens=4, do_sample=False, eos_token_id=None
        )[0, 12:].tolist()
        context, question = tuple(tokens[:9].tolist()), tuple(tokens[9:].tolist())
        for length in (1, 3):
            continues = chr(written[length]).isdigit()
            answer = tuple(written[:length])
            scores = score_answers(model, characters, TaskPrompt(context, (question,), (answer,)))
            assert scores.right.tolist() == [not continues]
            seen.add(continues)
            wrong = (*written[: length - 1], (written[length - 1] + 1) % 128)
            scores = score_answers(model, characters, TaskPrompt(context, (question,), (wrong,)))
            assert scores.right.tolist() == [False]
    assert seen == {True, False}


def test_log_probabilities_add_up_over_the_answer():
    model = llama()
    prompt = make_prompt(random_tokens(30).tolist(), 6, (3, 2), (2, 4))
    found = score_answers(model, tokenizer(), prompt).log_probability
    expected = []
    for logits, answer in zip(logits_in_one_pass(model, prompt), prompt.answers, strict=True):
        rows = logits.double().log_softmax(-1)
        expected.append(sum(float(rows[index, token]) for index, token in enumerate(answer)))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.all(found < 0)


def test_a_model_without_an_output_layer_is_refused():
    with pytest.raises(UserError, match="LlamaModel does not predict the next token"):
        require_language_model(llama().model)
    encoder = next(family for family in FAMILIES.values() if family.kind == "encoder")
    with pytest.raises(UserError, match=f"{encoder.model} does not predict the next token"):
        require_language_model(encoder.make())
