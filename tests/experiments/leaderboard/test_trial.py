"""Tuning: the learning rate of the lowest loss, unless it is too high for the whole training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sharpmax.experiments.leaderboard import trial
from sharpmax.experiments.leaderboard.trial import Budget, Trial
from sharpmax.experiments.max_retrieval.train import TrainedHead

BUDGET = Budget(steps=200, tuning_steps=100, rates=(1e-3, 3e-3), seeds=(0, 1))
NAN = float("nan")


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Return a function that tunes and trains with given final losses, by rate."""
    losses: dict[tuple[int, float], float] = {}

    def pretend(job, report_share):
        steps, rate = job.training.steps, job.training.learning_rate
        return TrainedHead(job.seed, steps, np.full(steps // 100, losses[steps, rate]), {}, 1.0)

    monkeypatch.setattr(trial, "train", pretend)
    one = Trial("hard", "max", False, BUDGET, tmp_path)

    def run(short, whole):
        for steps, values in ((BUDGET.tuning_steps, short), (BUDGET.steps, whole)):
            losses.update({(steps, rate): v for rate, v in zip(BUDGET.rates, values, strict=True)})
        reports = trial._split_progress(one, lambda share: None)
        tuning = trial._tune(one, reports)
        chosen, given_up = trial._train(one, tuning, reports)
        return tuning, chosen.rate, [each.rate for each in given_up]

    return run


def test_the_rate_of_the_lowest_loss_is_used(tune):
    assert tune(short=(0.5, 0.4), whole=(0.1, 0.2)) == ({3e-3: 0.4, 1e-3: 0.5}, 3e-3, [])


def test_a_rate_that_diverges_is_not_used(tune):
    assert tune(short=(0.5, NAN), whole=(0.1, NAN)) == ({1e-3: 0.5, 3e-3: None}, 1e-3, [])
    assert tune(short=(0.5, 0.4), whole=(0.1, NAN))[1:] == (1e-3, [3e-3])


def test_a_rate_that_is_too_high_for_the_whole_training_is_given_up(tune):
    assert tune(short=(0.5, 0.4), whole=(0.1, 2.3))[1:] == (1e-3, [3e-3])


def test_if_all_rates_are_given_up_the_best_of_them_is_used(tune):
    assert tune(short=(0.5, 0.4), whole=(0.6, 2.3))[1:] == (1e-3, [3e-3])
    assert tune(short=(0.5, 0.4), whole=(0.9, 0.8))[1:] == (3e-3, [1e-3])


def test_results_of_other_budgets_have_other_files(tmp_path):
    base = Trial("hard", "max", False, BUDGET, tmp_path)
    others = [
        base._replace(augmented=True),
        base._replace(task="second-max"),
        base._replace(design="relu"),
        base._replace(budget=replace(BUDGET, sets=41)),
    ]
    assert len({each.path for each in [base, *others]}) == 5


def test_only_softmax_heads_are_evaluated_with_drop_in_methods(tmp_path):
    assert list(Trial("hard", "max", False, BUDGET, tmp_path).methods) == ["hard"]
    every = Trial("softmax", "max", False, BUDGET, tmp_path)
    assert {"softmax", "hard"} < set(every.methods)
    assert list(every._replace(put_in=()).methods) == ["softmax"]
    some = every._replace(put_in=("hard", "differential"))  # the latter cannot be put in
    assert list(some.methods) == ["softmax", "hard"]
    assert some.path != every.path


def test_the_shares_of_the_parts_cover_the_whole(tmp_path):
    one, shares = Trial("hard", "max", False, BUDGET, tmp_path), []
    parts = list(trial._split_progress(one, shares.append))
    assert len(parts) == 2 + 2 + 2  # rates, seeds, evaluations
    for part in parts:
        part(0.0)
        part(1.0)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(1.0)
    assert shares[1:-1:2] == pytest.approx(shares[2::2])  # each begins where the last one ended
