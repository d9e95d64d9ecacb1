"""The leaderboard in small: complete, resumable, and its numbers are those of the heads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sharpmax import UserError
from sharpmax.cli import formats, tables
from sharpmax.experiments.leaderboard import experiment, trial
from sharpmax.experiments.leaderboard.entries import TRACKS
from sharpmax.experiments.leaderboard.experiment import Config
from sharpmax.experiments.leaderboard.trial import Budget, Trial
from sharpmax.experiments.max_retrieval.evaluation import EvaluationJob, evaluate_head
from sharpmax.experiments.max_retrieval.model import DESIGNS
from sharpmax.experiments.max_retrieval.train import TrainingJob, load_checkpoint

BUDGET = Budget(
    steps=200, tuning_steps=100, rates=(1e-3, 3e-3), seeds=(0, 1), sizes=(5, 64), sets=40
)
SMALL = Config(BUDGET, tasks=("max",), methods=("scalable-softmax", "selective"), rounds=1)
pytestmark = pytest.mark.usefixtures("default_jax")


@pytest.fixture(scope="module")
def made(default_jax, inline_jobs, tmp_path_factory):
    """The folder, the result and the progress of a small leaderboard without process pools.

    The heads of softmax are evaluated with two drop-in methods: each takes a second to compile.
    """
    folder = tmp_path_factory.mktemp("leaderboard")
    names = ("softmax", "scalable-softmax")
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        few = {name: DESIGNS[name].normaliser for name in names}
        patch.setattr(trial, "drop_in_methods", lambda: few)
        result = experiment.run(SMALL, folder, progress=lambda *call: calls.append(call))
        yield folder, result, calls


def rows_of(result):
    return {(row["track"], row["task"], row["method"]): row for row in result.measurements["rows"]}


def check_rows(result, config):
    """Check that every row has numbers or a reason."""
    rows = rows_of(result)
    assert len(rows) == 4 * len(config.tasks) * 3
    for (track, task, method), row in rows.items():
        absent = method == "selective" or (task == "most-frequent" and "augmented" in track)
        assert ("reason" in row) is absent
        if not absent:
            shape = (len(config.budget.seeds), len(config.budget.sizes))
            assert np.shape(row["accuracy"]) == shape
            np.testing.assert_allclose(row["mean"], np.mean(row["accuracy"], axis=0))
            np.testing.assert_allclose(row["std"], np.std(row["accuracy"], axis=0, ddof=1))
            assert len(row["sharpness"]) == shape[1]
            used = next(rate for rate in row["tuning"] if rate not in row["given_up"])
            assert row["learning_rate"] == float(used)
            assert list(row["tuning"].values()) == sorted(row["tuning"].values())
            assert ("learned" in row) is TRACKS[track].own
            assert ("dispersion" in row) is (task == "max")


def test_every_row_has_numbers_or_a_reason(made):
    check_rows(made[1], SMALL)


def test_heads_learn_and_sharpness_falls(made):
    rows = rows_of(made[1])
    plain = rows["trained", "max", "softmax"]
    assert plain["mean"][0] > 0.5
    assert plain["sharpness"][0] > 1.2 * plain["sharpness"][-1]
    learned = rows["trained", "max", "scalable-softmax"]["learned"]
    assert set(learned) == {"scale", "bias"}
    assert learned["scale"][0] != learned["scale"][1]


def test_drop_in_methods_are_put_into_the_same_heads(made):
    rows = rows_of(made[1])
    own, dropped = rows["trained", "max", "softmax"], rows["drop-in", "max", "softmax"]
    assert own["accuracy"] == dropped["accuracy"]
    assert rows["drop-in", "max", "scalable-softmax"]["final_loss"] == own["final_loss"]
    narrow = rows["augmented-drop-in", "max", "softmax"]["accuracy"]
    assert narrow == rows["augmented", "max", "softmax"]["accuracy"]
    assert narrow != rows["drop-in", "max", "softmax"]["accuracy"]


def test_a_row_is_the_evaluation_of_its_heads(made):
    folder, result, _ = made
    row = rows_of(result)["augmented", "max", "scalable-softmax"]
    one = Trial("scalable-softmax", "max", True, BUDGET, folder)
    design = DESIGNS["scalable-softmax"]
    for index, seed in enumerate(BUDGET.seeds):
        job = TrainingJob(one.training(BUDGET.steps, row["learning_rate"]), seed, folder)
        assert job.training.narrowest == BUDGET.narrowest
        weights = load_checkpoint(job.path).weights[BUDGET.steps]
        methods = {"scalable-softmax": design.normaliser}
        evaluation = evaluate_head(
            EvaluationJob(weights, True, "max", seed, BUDGET.sizes, 40, methods, design)
        )
        np.testing.assert_allclose(
            row["accuracy"][index],
            evaluation.correct["scalable-softmax"].mean(1),
            atol=1.01 / 40,
        )
        assert row["learned"]["scale"][index] == pytest.approx(
            design.normaliser.scale + weights["normaliser_scale"].item()
        )


def test_progress_covers_every_trial_once(made):
    trials = {index for phase, _, index, share in made[2] if phase == "training" and share == 1}
    assert trials == set(range(4))
    shares = [share for phase, _, index, share in made[2] if phase == "training" and index == 0]
    assert shares == sorted(shares)


def test_finished_trials_are_kept_and_lost_ones_run_again(made, monkeypatch):
    """As after a kill: one trial without its result, and without one of its trainings."""
    folder, result, _ = made
    one = Trial("softmax", "max", False, BUDGET, folder)
    rate = json.loads(one.path.read_text())["learning_rate"]
    one.path.unlink()
    TrainingJob(one.training(BUDGET.steps, rate), 1, folder).path.unlink()
    performed, run_jobs = [], experiment.run_jobs

    def watch(function, jobs, **named):
        if function is experiment.time_steps:
            return [{}]
        performed.extend(jobs)
        return run_jobs(function, jobs, **named)

    monkeypatch.setattr(experiment, "run_jobs", watch)
    again = experiment.run(SMALL, folder)
    assert performed == [one]
    assert again.measurements["rows"] == result.measurements["rows"]


def test_on_a_cluster_the_same_trials_are_sent_and_their_results_saved_here(
    made, tmp_path, monkeypatch
):
    """What a cluster does with them is tested there; here it returns known results."""
    folder, result, _ = made
    sent = []

    def pretend(function, trials, *, address, progress, on_result):
        sent.append((function, [each.folder for each in trials], address))
        for index, each in reversed(list(enumerate(trials))):
            on_result(index, json.loads(each._replace(folder=folder).path.read_text()))

    monkeypatch.setattr(experiment, "run_on_cluster", pretend)
    monkeypatch.setattr(experiment, "run_jobs", lambda *given, **named: [{}])  # timing
    monkeypatch.chdir(tmp_path)
    again = experiment.run(SMALL, Path("here"), ray="somewhere:1")
    assert sent == [(trial.run_trial, [tmp_path / "here"] * 4, "somewhere:1")]
    assert len(list((tmp_path / "here" / "units").iterdir())) == 4
    assert again.measurements["rows"] == result.measurements["rows"]
    experiment.run(SMALL, Path("here"), ray="somewhere:1")
    assert sent[1] == (trial.run_trial, [], "somewhere:1")


def test_a_damaged_result_is_named(made, monkeypatch):
    folder, _, _ = made
    path = Trial("softmax", "max", True, BUDGET, folder).path
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    monkeypatch.setattr(experiment, "run_jobs", lambda *given, **named: [])
    try:
        with pytest.raises(UserError, match=r"max-softmax-augmented.*is damaged.*delete it"):
            experiment.run(SMALL, folder)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("magic",)}, "unknown method 'magic': expected one of softmax"),
        ({"tasks": ("poetry",)}, "unknown task 'poetry': expected one of max"),
        ({"tracks": ("fast",)}, "unknown track 'fast': expected one of drop-in"),
        ({"budget": replace(BUDGET, steps=150)}, "a positive multiple of 100 steps, got 150"),
        ({"budget": replace(BUDGET, rates=())}, "at least one learning rate"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        experiment.run(replace(SMALL, **changes), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_mean_over_seeds_leaves_out_diverged_ones():
    assert experiment._mean_over_seeds([[0.5, None], [0.7, None]]) == [pytest.approx(0.6), None]
    assert experiment._mean_over_seeds([[0.5], [None]]) == [0.5]


def test_cost_is_a_ratio_to_softmax(made):
    cost = made[1].measurements["cost"]
    assert cost["ratio"]["softmax"] == 1
    assert set(cost["ratio"]) == {"softmax", "scalable-softmax"}
    assert 0.2 < cost["ratio"]["scalable-softmax"] < 10
    assert cost["milliseconds"]["softmax"] > 0
    assert made[1].measurements["unit_seconds"] > 1


@pytest.mark.slow
def test_a_leaderboard_in_processes_with_all_drop_in_methods(default_jax, tmp_path, capsys):
    config = replace(SMALL, tasks=("max", "most-frequent"), rounds=2)
    result = experiment.run(config, tmp_path)
    check_rows(result, config)
    rows = rows_of(result)
    tables.show(result)
    shown = capsys.readouterr().out
    for track in TRACKS:
        assert f"{track}: {TRACKS[track].what}" in shown.replace("\n", " ").replace("  ", " ")
    best = rows["trained", "max", "scalable-softmax"]
    assert formats.percent(best["mean"][-1], best["std"][-1]).replace(" ", "") in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "without selective: needs the logits of all queries" in shown
    assert "not in most-frequent: priorities say nothing" in shown
    assert "standard deviation over 2 seeds" in shown
