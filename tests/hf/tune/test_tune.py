"""tune: exact gradients of the rates, the same file every time, gains that are real."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

import sharpmax.hf as shf
from hf.families import FAMILIES
from hf.small import assert_nothing_is_patched, llama, random_tokens, tokenizer
from sharpmax._errors import UserError
from sharpmax.hf.evaluate.resolve import resolve_task
from sharpmax.hf.evaluate.scoring import read_context, score_answers
from sharpmax.hf.evaluate.tasks import TaskPrompt, make_prompts
from sharpmax.hf.tune import learning, outcome, settings
from sharpmax.hf.tune.calibration import ByRate, architecture_of
from sharpmax.hf.tune.checkpointing import checkpointed_layers
from sharpmax.hf.tune.head_profiles import frozen_weights
from sharpmax.results.calibration import Law

TEXT = [
    "".join(map(chr, random_tokens(300, seed=seed).remainder(60).add(40).tolist()))
    for seed in range(6)
]


def copy_task(length, generator):
    """A number in noise: a random model answers at chance, and rates move its log-probability."""
    number = int(generator.integers(10))
    return f"{'x' * length}{number}{'y' * length}", f" {number}"


def tune(model=None, tasks=None, **changes):
    options = {
        "guard": TEXT,
        "from_tokens": 8,
        "steps": 6,
        "check_prompts": 2,
        "guard_weight": 0.1,
        "max_text_cost": None,
    }
    return shf.tune(
        llama() if model is None else model,
        tokenizer(),
        {copy_task: [10, 20]} if tasks is None else tasks,
        **options | changes,
    )


# Gradients.


def make_prompt():
    tokens = random_tokens(40).remainder(50).tolist()
    return TaskPrompt(
        tuple(tokens[:12]),
        (tuple(tokens[12:15]), tuple(tokens[15:20])),
        (tuple(tokens[20:22]), tuple(tokens[22:25])),
    )


def nats(model, prompt, rates, law):
    with ExitStack() as stack:
        for layer, by_head in enumerate(rates):
            stack.enter_context(shf.sharpen(model, ByRate(by_head, 4, law), layers=[layer]))
        # Not in _answer_nats: that casts to float32, as half precision needs.
        logits = learning.answer_logits(model, prompt, read_context(model, prompt))
        scores = [
            learning.answer_log_probability(rows.log_softmax(-1), answer)
            for rows, answer in zip(logits, prompt.answers, strict=True)
        ]
    return -torch.stack(scores).sum()


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen 3", "Gemma 3"])
def test_gradients_of_the_rates_are_finite_differences(name):
    """Grouped queries, sliding windows and QK-norm; in float64."""
    model, prompt, law = FAMILIES[name].make().double(), make_prompt(), Law(low=0.3, high=3)
    generator = torch.Generator().manual_seed(1)
    rates = [
        torch.empty(heads, dtype=torch.float64).uniform_(-0.3, 0.5, generator=generator)
        for heads in architecture_of(model).heads
    ]
    with frozen_weights(model):
        leaves = [by_head.clone().requires_grad_() for by_head in rates]
        slopes = torch.autograd.grad(nats(model, prompt, leaves, law), leaves)
    # Some norms and rotations are computed in float32 whatever the type of the model: their
    # rounding, divided by the step, is what remains.
    step = 1e-3
    with torch.no_grad():
        for layer, head in ((0, 1), (0, 3), (1, 0), (len(rates) - 1, 2)):
            ends = []
            for sign in (1, -1):
                moved = [by_head.clone() for by_head in rates]
                moved[layer][head] += sign * step
                ends.append(nats(model, prompt, moved, law).item())
            expected = (ends[0] - ends[1]) / (2 * step)
            assert slopes[layer][head].item() == pytest.approx(expected, rel=2e-3, abs=2e-3)
    assert max(slope.abs().max() for slope in slopes) > 0.05


def test_saving_memory_changes_no_gradient():
    model, prompt = llama(), make_prompt()
    gradients = []
    for save_memory in (False, True):
        run = object.__new__(learning.Tuning)
        run.model = model
        run.settings = settings.Settings(*(None,) * 9, save_memory, 1)
        rates = [torch.full((4,), 0.1, requires_grad=True) for _ in range(3)]
        with frozen_weights(model), ExitStack() as stack:
            for layer, by_head in enumerate(rates):
                stack.enter_context(shf.sharpen(model, ByRate(by_head, 4), layers=[layer]))
            for loss in run._answer_losses(prompt):
                loss.backward()
        gradients.append(torch.cat([by_head.grad for by_head in rates]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
    assert gradients[0].abs().max() > 0.01
    assert not any(block.training for block in model.modules())


def test_models_without_blocks_or_with_dropout_cannot_save_memory():
    with (
        pytest.raises(UserError, match=r"attention_dropout=0\.1: set it to 0"),
        checkpointed_layers(llama(attention_dropout=0.1)),
    ):
        pass


# The whole job.


def test_tuning_gains_and_says_so_in_the_file():
    steps = []
    calibration = tune(
        steps=20, held_out=["max"], check_prompts=2, guard_weight=0.0, progress=steps.append
    )
    assert calibration.version == 2
    assert calibration.law == settings.LAW
    assert calibration.from_tokens == 8
    first, *_, last = calibration.method["history"]
    assert last[1] < first[1]
    assert calibration.method["tasks"] == {"function copy_task": [10, 20]}
    tuned, held_out = calibration.gains
    assert (tuned.tuned_on, held_out.tuned_on) == (True, False)
    assert (tuned.length, tuned.questions) == (20, 2)
    assert calibration.text_cost.tokens == 300 - 8
    assert any(head.rate < 0 for head in calibration.heads)
    shares = [step.share for step in steps]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert steps[-1].nats_now < steps[0].nats_before


def test_gains_are_those_of_the_calibration_that_is_returned():
    """Measured again by `evaluate`'s own scoring, with the rounded rates of the file."""
    model = llama()
    calibration = tune(model, guard_weight=0.0, steps=20)
    (gain,) = calibration.gains
    prompts = make_prompts(
        model,
        resolve_task(copy_task),
        tokenizer(),
        [20],
        2,
        1,
        learning.CHECK + 10_000,
    )[20]
    for expected, policy in ((gain.nats_before, None), (gain.nats_after, calibration)):
        with shf.Condition(policy).apply(model):
            found = [
                score_answers(model, tokenizer(), prompt).log_probability.mean()
                for prompt in prompts
            ]
        assert np.mean(found) == pytest.approx(expected, rel=1e-3)
    assert gain.nats_after != gain.nats_before


def test_twice_gives_the_same_file_and_leaves_the_model_alone():
    model = llama().train()
    model.model.layers[0].requires_grad_(False)
    before = [parameter.requires_grad for parameter in model.parameters()]
    weights = [parameter.clone() for parameter in model.parameters()]
    text = tune(model).text()
    assert text == tune(model).text()
    assert text != tune(model, seed=2).text()
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert all(map(torch.equal, weights, model.parameters()))
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_nothing_is_patched()


@pytest.mark.parametrize("stops", [(1,), (2, 3), (5,)])
def test_an_interrupted_tuning_resumes_to_the_same_file(tmp_path, monkeypatch, stops):
    monkeypatch.setattr(learning, "SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(learning, "VALIDATE_EVERY", 2)
    path, whole = tmp_path / "part.json", tune(max_heads=5).text()

    class Stop:
        def __init__(self, after):
            self.after = after

        def __call__(self, step):
            if step.step == self.after:
                raise KeyboardInterrupt

    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            tune(max_heads=5, resume=path, progress=Stop(stop))
    assert tune(max_heads=5, resume=path).text() == whole
    with pytest.raises(UserError, match=r"another tune \(learning_rate differ\)"):
        tune(max_heads=5, resume=path, learning_rate=0.1)
    shf.forget(path)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from hf.tune import test_tune
test_tune.learning.SECONDS_BETWEEN_SAVES = 0.0
print("started", flush=True)
test_tune.tune(steps=40, resume=sys.argv[1], progress=lambda step: print(step.step, flush=True))
"""


@pytest.mark.slow
def test_a_killed_tuning_resumes_to_the_same_file(tmp_path):
    path, tests = tmp_path / "part.json", Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(path), str(tests)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.stdout.readline().strip() != "12":
            assert process.poll() is None
        time.sleep(0.05)  # anywhere in a step or a save
        process.send_signal(signal.SIGKILL)
    assert path.exists()
    assert tune(steps=40, resume=path).text() == tune(steps=40).text()


def test_only_the_heads_with_the_largest_rates_are_kept():
    calibration = tune(max_heads=3, steps=10, guard_weight=0.0)
    assert 1 <= len(calibration.heads) <= 3


def test_rates_below_the_smallest_are_dropped_and_bounds_hold():
    calibration = tune(steps=10, guard_weight=0.0)
    assert all(abs(head.rate) >= outcome.MIN_RATE for head in calibration.heads)
    entropy = torch.zeros(1, 2, 2, 1)
    policy = ByRate((-5.0, -0.1, 0.1, 5.0), 8, Law(low=0.3, high=3))
    factors = policy(entropy, torch.full_like(entropy, 80.0)).flatten()
    excess = np.log(10)
    expected = [0.3, 1 - 0.1 * excess, 1 + 0.1 * excess, 3.0]
    torch.testing.assert_close(factors, torch.tensor(expected, dtype=torch.float32))


def test_a_guard_with_a_large_weight_keeps_the_model_as_it_is():
    free, guarded = (
        tune(steps=20, guard_weight=weight, learning_rate=0.1, check_prompts=1)
        for weight in (0.0, 0.3)
    )
    costs = [abs(result.method["history"][-1][2]) for result in (free, guarded)]
    assert costs[1] < costs[0] / 2


def test_rates_are_scaled_down_until_text_costs_no_more_than_the_limit(monkeypatch):
    """With a stub for the cost, which is not a smooth function of the scale on a random model."""
    free = tune(steps=10, guard_weight=0.0)
    largest = max(abs(head.rate) for head in free.heads)

    def measure_text(run, draft, chunks):
        assert chunks in (run.guard.validation, run.guard.check)
        change = 0 if draft is None else max(abs(head.rate) for head in draft.heads) / largest
        return 2 * (1 + 0.1 * change)

    monkeypatch.setattr(outcome, "measure_text", measure_text)
    limited = tune(steps=10, guard_weight=0.0, max_text_cost=0.0501)
    assert limited.method["scale"] == 0.5
    for before, after in zip(free.heads, limited.heads, strict=True):
        assert after.rate == pytest.approx(0.5 * before.rate, rel=1e-3)
    with pytest.raises(shf.NothingToGain, match=r"cost more than 0\.1 % on ordinary text"):
        tune(steps=10, guard_weight=0.0, max_text_cost=0.001)


# Nothing to gain, and mistakes.


def test_a_model_that_cannot_gain_is_told_so(tmp_path):
    path = tmp_path / "part.json"
    with pytest.raises(shf.NothingToGain, match="which is not more than chance"):
        tune(learning_rate=0.0, resume=path)
    assert not path.exists()


def test_a_model_that_answers_well_is_told_so(monkeypatch):
    monkeypatch.setattr(learning, "GOOD_ENOUGH", 1e9)
    with pytest.raises(shf.NothingToGain, match="already gives the right answers"):
        tune()


@pytest.mark.parametrize(
    ("objectives", "stops"),
    [
        ([9, 8, 9, 9, 9], False),  # a decline in the first half does not count
        ([9, 9.5, 10, 11, 12, 13], True),  # nothing gained after half of the steps
        ([9, 8, 8, 8, 8, 7, 7.1, 7.2], False),
        ([9, 8, 8, 8, 8, 7, 7.1, 7.2, 7.3], True),
        ([9, 8, 8, 8, 8, 7, 7.1, 7.2, 6.9], False),
    ],
)
def test_tuning_stops_when_validation_no_longer_improves(objectives, stops):
    run = object.__new__(learning.Tuning)
    run.settings = settings.Settings(None, None, 8, 100, *(None,) * 7)
    run.history = [[10 * index, 0.0, 0.0, value] for index, value in enumerate(objectives)]
    run.step = run.history[-1][0]
    assert run._stopped() == stops


@pytest.mark.parametrize(
    ("tasks", "changes", "message"),
    [
        ([], {}, "no tasks: give at least one"),
        (["poem"], {}, "unknown task 'poem'"),
        ([copy_task], {}, "has no default lengths to tune on"),
        (["lookup"], {"held_out": ["lookup"]}, "given twice, or also held out: lookup"),
        (None, {"from_tokens": 100}, r"longest prompt has \d+ tokens, and nothing changes up to"),
        (None, {"guard": ["short"]}, "has 0 chunks of 72 to"),
        (None, {"guard": "no such file.txt"}, "cannot read the guard text no such file.txt"),
        (None, {"guard": [1]}, "guard: expected the path"),
        (None, {"steps": 0}, "steps=0: give at least 1"),
        (None, {"max_heads": 0}, "max_heads=0: give at least 1"),
        (None, {"learning_rate": -1.0}, "learning_rate=-1.0"),
        (None, {"guard_weight": float("nan")}, "guard_weight=nan"),
        (None, {"questions": 0}, "questions=0: give at least 1"),
        ({copy_task: [400]}, {}, "context of this model is 512 tokens"),
    ],
)
def test_mistakes_are_refused_before_the_model_reads(tasks, changes, message):
    with pytest.raises(UserError, match=message):
        tune(tasks=tasks, **changes)


def test_a_loss_that_is_not_finite_is_refused():
    model = llama()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="is not finite; try --dtype float32"):
        tune(model)
    assert_nothing_is_patched()


def test_other_models_are_refused():
    with pytest.raises(UserError, match="does not predict the next token"):
        tune(llama().model)
