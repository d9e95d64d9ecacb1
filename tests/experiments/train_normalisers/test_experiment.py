"""Training with normalisers: interrupted runs give the same result, and partial ones are useful."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sharpmax import UserError, report
from sharpmax.experiments.train_normalisers import experiment, training
from sharpmax.experiments.train_normalisers.config import CONDITIONS, Config
from sharpmax.experiments.train_normalisers.training import make_model
from sharpmax.hf.train.normaliser import normaliser_of
from sharpmax.hf.tune import learning, outcome
from sharpmax.results import Result

SMALL = Config(
    conditions=(
        "softmax",
        "softmax-tuned",
        "softmax-paper",
        "scalable-softmax",
        "adaptive-temperature",
    ),
    seeds=(0, 1),
    layers=1,
    hidden=16,
    heads=2,
    keys=8,
    values=4,
    context=128,
    largest=4,
    steps=25,
    batch=4,
    sample_every=10,
    sizes=(4, 16),
    questions=2,
    texts=3,
    tune_steps=2,
    tune_sizes=(8,),
    tune_from_tokens=9,
)


@pytest.fixture(autouse=True)
def accept_any_gain(monkeypatch):
    """A model that has hardly been trained gains little in two steps: count that as enough."""
    monkeypatch.setattr(learning, "MIN_STANDARD_ERRORS", -1e9)
    monkeypatch.setattr(outcome, "MIN_RATE", 0.0)


def numbers(result: Result) -> dict:
    """Return the measurements without times."""
    content = json.loads(result.model_dump_json())["measurements"]
    for row in content["rows"]:
        row.pop("seconds")
    return content


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_result(monkeypatch, tmp_path):
    shares = []
    whole = experiment.run(
        SMALL, tmp_path / "whole", threads=1, progress=lambda *given: shares.append(given)
    )
    assert shares[-1] == ("testing", 10, 9, 1.0)
    rows = whole.measurements["rows"]
    assert [(row["condition"], row["seed"]) for row in rows] == [
        (name, seed) for name in SMALL.conditions for seed in SMALL.seeds
    ]
    assert whole.seeds == (0, 1)

    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    take_step, calls = training._State.take_step, []

    def stop(state, step, texts):
        calls.append(step)
        if len(calls) in (16, 30, 60):
            raise KeyboardInterrupt
        take_step(state, step, texts)

    monkeypatch.setattr(training._State, "take_step", stop)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            experiment.run(SMALL, tmp_path / "stopped", threads=1)
    resumed = experiment.run(SMALL, tmp_path / "stopped", threads=1)
    assert numbers(resumed) == numbers(whole)
    for name, values in whole.arrays.items():
        np.testing.assert_array_equal(resumed.arrays[name], values, err_msg=name)
    # Three normalisers and two seeds; each stop repeats the steps since the last checkpoint.
    assert 6 * 25 < len(calls) <= 6 * 25 + 3 * 10
    assert len([step for step in calls if step == 0]) == 6


def test_a_partial_run_says_what_it_has(tmp_path):
    config = replace(SMALL, steps=3, sample_every=2)
    with pytest.raises(UserError, match="unknown condition 'hardmax': expected one of softmax, "):
        experiment.run(config, tmp_path, only=["hardmax"], threads=1)
    assert list(tmp_path.iterdir()) == []
    nothing = experiment.run(config, tmp_path, only=[], threads=1)
    assert report.describe(nothing).verdict.sentence == "No condition is finished yet."

    some = experiment.run(config, tmp_path, only=["softmax", "softmax-paper"], threads=1)
    rows = some.measurements["rows"]
    assert {row["condition"] for row in rows} == {"softmax", "softmax-paper"}
    assert list(some.measurements["summaries"]) == ["softmax", "softmax-paper"]
    plain, paper = (rows[index] for index in (0, 2))
    assert plain["largest_weight"] is not None
    assert paper["largest_weight"] is None
    assert plain["final_loss"] == paper["final_loss"]
    assert plain["nats"] != paper["nats"]
    assert set(some.arrays) == {"softmax-0", "softmax-1"}
    assert some.arrays["softmax-0"].shape == (2, 1, 2, 5)
    assert not np.isnan(some.arrays["softmax-0"]).any()
    report.draw(some)

    with pytest.raises(UserError, match=r"was measured with other settings: repeat the command"):
        experiment.run(replace(config, texts=4), tmp_path, threads=1)


def test_models_of_a_seed_begin_with_the_same_weights():
    names = ("softmax", "scalable-softmax", "adaptive-temperature", "entmax")
    models = {name: make_model(SMALL, CONDITIONS[name], 0) for name in names}
    plain = models["softmax"].state_dict()
    for name, model in models.items():
        weights = model.state_dict()
        assert all(torch.equal(weights[key], value) for key, value in plain.items())
        assert normaliser_of(model) == (None if name == "softmax" else name)
    other = make_model(SMALL, CONDITIONS["softmax"], 1).state_dict()
    assert not torch.equal(other["lm_head.weight"], plain["lm_head.weight"])


def test_no_training_text_is_longer_than_what_tune_leaves_alone():
    """Settings of the published run: start, items, and a key and a value per question."""
    config = Config()
    longest = 1 + config.largest + 2 * min(config.largest, config.questions)
    assert longest == config.tune_from_tokens
    assert max(config.sizes) + 1 + 2 * config.questions < config.context
    assert config.questions < config.keys
