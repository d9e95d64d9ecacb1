"""What a model answers: two passes over a shared text equal one pass over each whole text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sharpmax.hf as shf
from hf.families import FAMILIES, assert_close
from hf.small import llama, random_tokens, tokenizer
from sharpmax import PAPER
from sharpmax._errors import UserError
from sharpmax.hf.evaluate.scoring import answers, ask, read, require_language_model
from sharpmax.hf.evaluate.tasks import Case

DECODERS = sorted(name for name, family in FAMILIES.items() if family.kind == "decoder")


def case_of(tokens, context, *pairs):
    """A case whose questions and answers have these lengths, of the tokens in turn."""
    rest, parts = list(tokens[context:]), []
    for length in [length for pair in pairs for length in pair]:
        parts.append(tuple(rest[:length]))
        rest = rest[length:]
    return Case(tuple(tokens[:context]), tuple(parts[::2]), tuple(parts[1::2]))


@torch.no_grad()
def whole(model, case):
    """The same logits by one pass over each whole text, without a cache."""
    found = []
    for question, answer in zip(case.questions, case.answers, strict=True):
        ids = torch.tensor([[*case.context, *question, *answer]])
        logits = model(input_ids=ids, use_cache=False).logits[0]
        found.append(logits[-len(answer) - 1 :])
    return found


@pytest.mark.parametrize("sharpened", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_two_passes_equal_one(name, sharpened):
    model = FAMILIES[name].make("sdpa" if name == "Llama" else "eager")
    case = case_of(random_tokens(40).remainder(50).tolist(), 9, (3, 2), (1, 1), (4, 3))
    block = shf.sharpen(model, PAPER) if sharpened else torch.no_grad()
    with torch.no_grad(), block:
        found, expected = ask(model, case, read(model, case)), whole(model, case)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert_close(one, other)


def test_without_a_text_before_the_questions():
    model = llama()
    case = case_of(random_tokens(20).tolist(), 0, (5, 2), (6, 3))
    with torch.no_grad():
        found, expected = ask(model, case, read(model, case)), whole(model, case)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_right_is_what_greedy_decoding_writes():
    model, words = llama(), tokenizer()
    seen = set()
    for seed in range(12):
        prompt = random_tokens(12, seed=seed)
        written = model.generate(
            prompt[None], max_new_tokens=4, do_sample=False, eos_token_id=None
        )[0, 12:].tolist()
        prompt = prompt.tolist()
        for length in (1, 3):
            goes_on = chr(written[length]).isdigit()
            case = Case(tuple(prompt[:9]), (tuple(prompt[9:]),), (tuple(written[:length]),))
            assert answers(model, words, case).right.tolist() == [not goes_on]
            seen.add(goes_on)
            wrong = (*written[: length - 1], (written[length - 1] + 1) % 128)
            case = Case(tuple(prompt[:9]), (tuple(prompt[9:]),), (wrong,))
            assert answers(model, words, case).right.tolist() == [False]
    assert seen == {True, False}


def test_log_probabilities_add_up_over_the_answer():
    model, words = llama(), tokenizer()
    case = case_of(random_tokens(30).tolist(), 6, (3, 2), (2, 4))
    found = answers(model, words, case).log_probability
    for one, logits, answer in zip(found, whole(model, case), case.answers, strict=True):
        scores = logits.double().log_softmax(-1)
        expected = sum(float(scores[place, token]) for place, token in enumerate(answer))
        assert one == pytest.approx(expected, abs=1e-4)
    assert np.all(found < 0)


def test_a_model_without_an_output_layer_is_refused():
    with pytest.raises(UserError, match="LlamaModel does not predict the next token"):
        require_language_model(llama().model)
    encoder = next(family for family in FAMILIES.values() if family.kind == "encoder")
    with pytest.raises(UserError, match=f"{encoder.model} does not predict the next token"):
        require_language_model(encoder.make())
