"""Which heads to sharpen: measured against finite differences and eager attention."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

import sharpmax.hf as shf
from hf.families import FAMILIES
from hf.small import llama, random_tokens, tokenizer
from sharpmax import Constant
from sharpmax._errors import UserError
from sharpmax.hf.evaluate.scoring import answers
from sharpmax.hf.evaluate.tasks import Case, cases, task_of
from sharpmax.hf.tune import head_profiles

module = import_module("sharpmax.hf.tune.calibrate")  # the package has the function under this name


def some_case():
    tokens = random_tokens(40).remainder(50).tolist()
    return Case(
        tuple(tokens[:12]),
        (tuple(tokens[12:15]), tuple(tokens[15:20])),
        (tuple(tokens[20:22]), tuple(tokens[22:25])),
    )


@pytest.mark.parametrize("name", ["Llama", "Gemma 2", "gpt-oss"])
def test_benefits_are_derivatives(name):
    model, case = FAMILIES[name].make(), some_case()
    found = head_profiles.benefits(model, case)
    step = 1e-4 if FAMILIES[name].dtype == torch.float64 else 1e-2
    for layer, head in ((0, 1), (1, 0), (1, 3)):
        ends = []
        for sign in (1, -1):
            with shf.sharpen(model, Constant(np.exp(sign * step)), layers=[layer], heads=[head]):
                ends.append(answers(model, tokenizer(), case).log_probability.mean())
        expected = (ends[0] - ends[1]) / (2 * step)
        assert found[layer, head] == pytest.approx(expected, rel=0.02, abs=2e-3)
    assert np.abs(found).max() > 0.05


@pytest.mark.parametrize("name", ["Llama", "Gemma 2", "Mistral"])
def test_entropies_are_those_of_eager_attention(name):
    model, case = FAMILIES[name].make("eager"), some_case()
    found = head_profiles.entropies(model, case, (1.0, 1.7))
    expected = []
    for question, answer in zip(case.questions, case.answers, strict=True):
        ids = torch.tensor([[*case.context, *question, *answer]])
        with torch.no_grad():
            weights = model(input_ids=ids, output_attentions=True, use_cache=False).attentions
        rows = torch.stack([layer[0] for layer in weights])[:, :, -len(answer) - 1 : -1].double()
        for factor in (1.0, 1.7):
            sharper = rows**factor
            sharper = sharper / sharper.sum(-1, keepdim=True)
            expected.append(-torch.special.xlogy(sharper, sharper).sum(-1))
    for place in (0, 1):
        mean = torch.cat(expected[place::2], -1).mean(-1)
        np.testing.assert_allclose(found[place], mean, atol=2e-5)
    assert (found[1] < found[0]).all()


def short_task(length, generator):
    number = int(generator.integers(10))
    return f"{'x' * length}{number}{'y' * length}", f" {number}"


def options(**changes):
    return {"short": [4, 6], "long": [30], "prompts": 6} | changes


def subject(choose):
    """A model that has heads to choose."""
    return llama() if choose == "answers" else llama(initializer_range=0.5, seed=4)


@pytest.mark.parametrize("choose", ["answers", "entropy"])
def test_twice_gives_the_same_file_and_leaves_the_model_alone(choose):
    model = subject(choose).train()
    model.model.layers[0].requires_grad_(False)
    before = [parameter.requires_grad for parameter in model.parameters()]
    first, second = (
        shf.calibrate(model, tokenizer(), short_task, choose=choose, **options()).text()
        for _ in range(2)
    )
    assert first == second
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_chosen_by_answers_the_heads_help():
    found = shf.calibrate(subject("answers"), tokenizer(), short_task, **options())
    assert found.method["choose"] == "answers"
    best = max(one.benefit for one in found.heads)
    for one in found.heads:
        assert one.benefit > module.ERRORS * one.benefit_error
        assert one.benefit >= module.SHARE * best * (1 - 1e-3)
    tried, plain = found.method["by_rate"], found.method["log_probability_of_long"]
    taken = found.heads[0].rate
    enough = plain + module.ENOUGH * (max(tried.values()) - plain)
    assert tried[str(taken)] >= enough - 1e-2 * abs(enough)
    smaller = [value for rate, value in tried.items() if float(rate) < taken]
    assert all(value < enough + 1e-2 * abs(enough) for value in smaller)


def test_chosen_by_entropy_each_head_returns_to_its_own():
    model = subject("entropy")
    found = shf.calibrate(model, tokenizer(), short_task, choose="entropy", **options())
    high = cases(model, task_of(short_task), tokenizer(), [30], 6, 1, 1)[30]
    count = np.mean([case.tokens for case in high])
    for one in found.heads:
        assert one.short_entropy <= module.SHARP
        assert one.long_entropy >= one.short_entropy + module.RISE - 1e-3
        factor = 1 + one.rate * np.log(count / found.from_tokens)
        got = np.mean(
            [
                head_profiles.entropies(model, case, (factor,))[0, one.layer, one.head]
                for case in high
            ]
        )
        # Between two measured factors the entropy is taken for straight.
        assert got == pytest.approx(one.short_entropy, abs=0.1) or factor > 1.99
    assert found.heads


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choose": "luck"}, "choose='luck': expected one of answers, entropy"),
        ({"prompts": 3}, "prompts=3: give at least 4"),
        ({"short": [30], "long": [4]}, "give longer long inputs"),
        ({"long": [900]}, "the context of this model is 512"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        shf.calibrate(llama(), tokenizer(), short_task, **options(**changes))


def test_a_model_in_which_no_head_qualifies():
    flat = llama(initializer_range=1e-4)
    with pytest.raises(UserError, match=r"no head has at most 1\.0 nats on short inputs"):
        shf.calibrate(flat, tokenizer(), short_task, choose="entropy", **options())
