"""calibrate: heads measured against finite differences and eager attention, chosen by the rules."""

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
from sharpmax.hf.evaluate.resolve import resolve_task
from sharpmax.hf.evaluate.scoring import Scores, score_answers
from sharpmax.hf.evaluate.tasks import TaskPrompt, make_prompts
from sharpmax.hf.tune.head_profiles import measure_benefits, measure_entropies

# sharpmax.hf.calibrate is the function, so the module needs an explicit import.
module = import_module("sharpmax.hf.tune.calibrate")


def make_prompt():
    tokens = random_tokens(40).remainder(50).tolist()
    return TaskPrompt(
        tuple(tokens[:12]),
        (tuple(tokens[12:15]), tuple(tokens[15:20])),
        (tuple(tokens[20:22]), tuple(tokens[22:25])),
    )


@pytest.mark.parametrize("name", ["Llama", "Gemma 2", "gpt-oss"])
def test_benefits_are_derivatives(name):
    model, prompt = FAMILIES[name].make(), make_prompt()
    benefits = measure_benefits(model, prompt)
    step = 1e-4 if FAMILIES[name].dtype == torch.float64 else 1e-2
    for layer, head in ((0, 1), (1, 0), (1, 3)):
        ends = []
        for sign in (1, -1):
            with shf.sharpen(model, Constant(np.exp(sign * step)), layers=[layer], heads=[head]):
                ends.append(score_answers(model, tokenizer(), prompt).log_probability.mean())
        expected = (ends[0] - ends[1]) / (2 * step)
        assert benefits[layer, head] == pytest.approx(expected, rel=0.02, abs=2e-3)
    assert np.abs(benefits).max() > 0.05


@pytest.mark.parametrize("name", ["Llama", "Gemma 2", "Mistral"])
def test_entropies_are_those_of_eager_attention(name):
    model, prompt, factors = FAMILIES[name].make("eager"), make_prompt(), (1.0, 1.7)
    measured = measure_entropies(model, prompt, factors)
    expected = {factor: [] for factor in factors}
    for question, answer in zip(prompt.questions, prompt.answers, strict=True):
        ids = torch.tensor([[*prompt.context, *question, *answer]])
        with torch.no_grad():
            weights = model(input_ids=ids, output_attentions=True, use_cache=False).attentions
        rows = torch.stack([layer[0] for layer in weights])[:, :, -len(answer) - 1 : -1].double()
        for factor in factors:
            sharper = rows**factor
            sharper = sharper / sharper.sum(-1, keepdim=True)
            expected[factor].append(-torch.special.xlogy(sharper, sharper).sum(-1))
    for found, factor in zip(measured, factors, strict=True):
        np.testing.assert_allclose(found, torch.cat(expected[factor], -1).mean(-1), atol=2e-5)
    assert (measured[1] < measured[0]).all()


def short_task(length, generator):
    number = int(generator.integers(10))
    return f"{'x' * length}{number}{'y' * length}", f" {number}"


def calibrate(model, **changes):
    options = {"short": [4, 6], "long": [30], "prompts": 6} | changes
    return shf.calibrate(model, tokenizer(), short_task, **options)


def model_for(choose):
    """A model with heads that qualify."""
    return llama() if choose == "answers" else llama(initializer_range=0.5, seed=4)


@pytest.mark.parametrize("choose", ["answers", "entropy"])
def test_twice_gives_the_same_file_and_leaves_the_model_alone(choose):
    model = model_for(choose).train()
    model.model.layers[0].requires_grad_(False)
    before = [parameter.requires_grad for parameter in model.parameters()]
    shares = []
    first = calibrate(model, choose=choose, progress=shares.append).text()
    assert first == calibrate(model, choose=choose).text()
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


class Interrupt:
    """Counts the passes over prompts and raises instead of the one after `after`."""

    def __init__(self, monkeypatch):
        self.passes, self.after = 0, None
        for name in ("measure_benefits", "measure_entropies", "score_reference"):
            monkeypatch.setattr(module, name, self.counting(getattr(module, name)))

    def counting(self, function):
        def count(*arguments):
            if self.passes == self.after:
                raise KeyboardInterrupt
            self.passes += 1
            return function(*arguments)

        return count


@pytest.mark.parametrize(
    # The short prompts need 12 passes (24 with answers), the long ones 6, each rate another 6.
    ("choose", "stops", "repeated"),
    [("answers", (3, 27, 45), 1), ("entropy", (5, 14), 0)],
)
def test_an_interrupted_calibration_resumes_to_the_same_file(
    tmp_path, monkeypatch, choose, stops, repeated
):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SAVES", 0.0)
    interrupt, model, path = Interrupt(monkeypatch), model_for(choose), tmp_path / "part.json"
    whole = calibrate(model, choose=choose)
    needed, interrupt.passes = interrupt.passes, 0
    for interrupt.after in stops:
        with pytest.raises(KeyboardInterrupt):
            calibrate(model, choose=choose, resume=path)
    interrupt.after = None
    resumed = calibrate(model, choose=choose, resume=path)
    assert resumed.text() == whole.text()
    # The third of 24 passes is the first of two over the second prompt, and is repeated.
    assert interrupt.passes == needed + repeated
    again = calibrate(model, choose=choose, resume=path)
    assert (again, interrupt.passes) == (whole, needed + repeated)
    shf.forget(path)
    assert list(tmp_path.iterdir()) == []


def test_the_checkpoint_of_another_calibration_is_refused(tmp_path):
    path = tmp_path / "part.json"
    calibrate(llama(), resume=path)
    for model, changes, reason in (
        (llama(), {"seed": 2}, r"another calibrate \(seed, inputs_sha256 differ\)"),
        (llama(), {"choose": "entropy"}, r"another calibrate \(choose differ\)"),
        (llama(seed=1), {}, r"another calibrate \(weights_sha256 differ\)"),
    ):
        with pytest.raises(UserError, match=reason):
            calibrate(model, resume=path, **changes)


def test_the_rules_that_choose_heads():
    nan = np.nan  # a layer with fewer heads
    by_entropy = module._Measurements(
        short=np.array([[0.5, 0.9, 1.0, 1.1, nan]]),
        long=np.array([[[0.7, 1.2, 1.25, 2.0, nan]]]),
        benefit=None,
        benefit_error=None,
    )
    assert module._choose_heads(by_entropy, "entropy").tolist() == [
        [False, True, True, False, False]
    ]
    by_answers = module._Measurements(
        by_entropy.short,
        by_entropy.long,
        benefit=np.array([[1.0, 0.21, 0.19, 0.5, nan]]),
        benefit_error=np.array([[0.3, 0.01, 0.01, 0.17, nan]]),
    )
    assert module._choose_heads(by_answers, "answers").tolist() == [
        [True, True, False, False, False]
    ]


def test_heads_chosen_by_answers_help():
    calibration = calibrate(model_for("answers"))
    assert calibration.method["choose"] == "answers"
    best = max(head.benefit for head in calibration.heads)
    for head in calibration.heads:
        assert head.benefit > module.MIN_STANDARD_ERRORS * head.benefit_error
        assert head.benefit >= module.MIN_SHARE_OF_BEST * best * (1 - 1e-3)
    by_rate = calibration.method["by_rate"]
    plain = calibration.method["log_probability_of_long"]
    chosen = calibration.heads[0].rate
    enough = plain + module.ENOUGH_GAIN * (max(by_rate.values()) - plain)
    slack = 1e-2 * abs(enough)
    assert by_rate[str(chosen)] >= enough - slack
    assert all(score < enough + slack for rate, score in by_rate.items() if float(rate) < chosen)


def test_the_smallest_rate_with_enough_gain_is_taken(monkeypatch):
    means = dict(zip((0, *module.RATES), (-5.0, -4.5, -4.2, -4.05, -4.0, -4.1, -6.0), strict=True))
    rows = iter([mean for mean in means.values() for _ in range(6)])
    noise = np.random.default_rng(0).normal(size=(7, 6))
    offsets = iter((noise - noise.mean(1, keepdims=True)).ravel())

    def score(model, tokenizer, prompt):
        return Scores(np.array([True]), np.array([next(rows) + next(offsets)]))

    monkeypatch.setattr(module, "score_reference", score)
    calibration = calibrate(model_for("answers"))
    assert {head.rate for head in calibration.heads} == {0.2}  # a gain of 0.95 of at most 1
    assert calibration.method["log_probability_of_long"] == -5.0
    assert calibration.method["by_rate"] == {str(rate): means[rate] for rate in module.RATES}


def test_the_log_probabilities_of_long_prompts_are_those_of_sharpened_models():
    model = model_for("answers")
    calibration = calibrate(model)
    prompts = make_prompts(model, resolve_task(short_task), tokenizer(), [30], 6, 1, 1)[30]

    def score():
        answers = [score_answers(model, tokenizer(), prompt) for prompt in prompts]
        return np.mean([scores.log_probability for scores in answers])

    chosen = calibration.heads[0].rate
    method = calibration.method
    assert method["log_probability_of_long"] == pytest.approx(score(), rel=1e-3)
    assert list(method["by_rate"]) == [str(rate) for rate in module.RATES]
    for rate in module.RATES:
        with shf.sharpen(model, calibration.scaled(rate / chosen)):
            assert method["by_rate"][str(rate)] == pytest.approx(score(), rel=1e-3)


def test_heads_chosen_by_entropy_return_to_their_short_entropy():
    model = model_for("entropy")
    calibration = calibrate(model, choose="entropy")
    prompts = make_prompts(model, resolve_task(short_task), tokenizer(), [30], 6, 1, 1)[30]
    tokens = np.mean([prompt.tokens for prompt in prompts])
    assert calibration.heads
    for head in calibration.heads:
        assert head.short_entropy <= module.MAX_SHORT_ENTROPY
        assert head.long_entropy >= head.short_entropy + module.MIN_ENTROPY_RISE - 1e-3
        factor = 1 + head.rate * np.log(tokens / calibration.from_tokens)
        entropies = [measure_entropies(model, prompt, (factor,))[0] for prompt in prompts]
        found = np.mean(entropies, 0)[head.layer, head.head]
        # Between two measured factors the entropy is interpolated linearly.
        assert found == pytest.approx(head.short_entropy, abs=0.1) or factor > 1.99


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choose": "luck"}, "choose='luck': expected one of answers, entropy"),
        ({"prompts": 3}, "prompts=3: give at least 4"),
        ({"short": [30], "long": [4]}, r"long=\[4\] has .*give longer long lengths"),
        ({"short": [30], "long": [30]}, "give longer long lengths"),
        ({"long": [900]}, "the context of this model is 512"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        calibrate(llama(), **changes)


def test_a_model_in_which_no_head_qualifies(tmp_path):
    flat = llama(initializer_range=1e-4)
    with pytest.raises(module.NothingToGain, match=r"no head has at most 1\.0 nats on short"):
        calibrate(flat, choose="entropy", resume=tmp_path / "part.json")
    assert list(tmp_path.iterdir()) == []  # finished: nothing to resume


def test_a_model_that_no_rate_helps(monkeypatch):
    monkeypatch.setattr(module, "MIN_STANDARD_ERRORS", -1e9)
    monkeypatch.setattr(module, "MIN_SHARE_OF_BEST", 1.0)
    monkeypatch.setattr(module, "RATES", (0.1, 0.2))
    monkeypatch.setattr(
        module, "measure_benefits", lambda model, prompt: -measure_benefits(model, prompt)
    )
    with pytest.raises(module.NothingToGain, match="less probable at every rate"):
        calibrate(llama())
