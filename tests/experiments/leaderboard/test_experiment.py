"""The leaderboard in small: complete, resumable, and its numbers are those of the heads."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sharpmax import UserError, report
from sharpmax.experiments.leaderboard import experiment, trial
from sharpmax.experiments.leaderboard.entries import TRACKS
from sharpmax.experiments.leaderboard.experiment import Config
from sharpmax.experiments.leaderboard.trial import Budget, Trial
from sharpmax.experiments.max_retrieval.evaluation import EvaluationJob, evaluate_head
from sharpmax.experiments.max_retrieval.model import DESIGNS
from sharpmax.experiments.max_retrieval.train import Training, TrainingJob, load_checkpoint
from sharpmax.report.numbers import share

BUDGET = Budget(steps=200, tuning_steps=100, rates=(1e-3, 3e-3), seeds=(0, 1), sizes=(16,), sets=40)
SMALL = Config(
    BUDGET, ("drop-in", "trained"), tasks=("max",), methods=("hard", "selective"), rounds=1
)
FULL = Config(
    replace(BUDGET, sizes=(5, 64)),
    tasks=("max", "most-frequent"),
    methods=("scalable-softmax", "selective"),
    rounds=2,
)
pytestmark = pytest.mark.usefixtures("default_jax")


@pytest.fixture(scope="module")
def made(default_jax, inline_jobs, tmp_path_factory):
    """The folder, the result and the progress of a small leaderboard in this process.

    The heads of softmax are evaluated with two drop-in methods: each takes a second to compile.
    """
    folder = tmp_path_factory.mktemp("leaderboard")
    names = ("softmax", "hard")
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        few = {name: DESIGNS[name].normaliser for name in names}
        patch.setattr(trial, "drop_in_methods", lambda: few)
        for module in (trial, experiment):
            patch.setattr(module, "Training", partial(Training, batch=16))
        result = experiment.run(SMALL, folder, progress=lambda *call: calls.append(call))
        yield folder, result, calls


def rows_of(result):
    return {(row["track"], row["task"], row["method"]): row for row in result.measurements["rows"]}


def check_rows(result, config):
    """Check that every row has numbers or a reason."""
    rows = rows_of(result)
    assert len(rows) == len(config.tracks) * len(config.tasks) * 3
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


def test_heads_learn_and_hard_attention_is_sharp(made):
    rows = rows_of(made[1])
    assert rows["trained", "max", "softmax"]["mean"][0] > 0.2
    assert rows["trained", "max", "softmax"]["sharpness"][0] < 1.0
    assert rows["trained", "max", "hard"]["sharpness"] == [1.0]


def test_drop_in_methods_are_put_into_the_same_heads(made):
    rows = rows_of(made[1])
    own, dropped = rows["trained", "max", "softmax"], rows["drop-in", "max", "softmax"]
    assert own["accuracy"] == dropped["accuracy"]
    assert rows["drop-in", "max", "hard"]["final_loss"] == own["final_loss"]
    assert rows["trained", "max", "hard"]["final_loss"] != own["final_loss"]


def test_a_row_is_the_evaluation_of_its_heads(made):
    folder, result, _ = made
    check_row(folder, rows_of(result)["trained", "max", "hard"], BUDGET)


def check_row(folder, row, budget):
    """Evaluate the saved heads of a row again, and compare."""
    name, augmented = row["method"], TRACKS[row["track"]].augmented
    one, design = Trial(name, "max", augmented, budget, folder), DESIGNS[name]
    for index, seed in enumerate(budget.seeds):
        job = TrainingJob(one.training(budget.steps, row["learning_rate"]), seed, folder)
        assert job.training.narrowest == (budget.narrowest if augmented else 1.0)
        weights = load_checkpoint(job.path).weights[budget.steps]
        methods = {name: design.normaliser}
        evaluation = evaluate_head(
            EvaluationJob(weights, True, "max", seed, budget.sizes, 40, methods, design)
        )
        np.testing.assert_allclose(
            row["accuracy"][index], evaluation.correct[name].mean(1), atol=1.01 / 40
        )
        for field in design.learned:
            assert row["learned"][field][index] == pytest.approx(
                getattr(design.normaliser, field) + weights[f"normaliser_{field}"].item()
            )


def test_progress_covers_every_trial_once(made):
    trials = {index for phase, _, index, share in made[2] if phase == "training" and share == 1}
    assert trials == set(range(2))
    shares = [share for phase, _, index, share in made[2] if phase == "training" and index == 0]
    assert shares == sorted(shares)


def test_finished_trials_are_kept_and_lost_ones_run_again(made, monkeypatch):
    """As after a kill: one trial without its result, and without one of its trainings."""
    folder, result, _ = made
    one = Trial("softmax", "max", False, BUDGET, folder, SMALL.methods)
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
    assert sent == [(trial.run_trial, [tmp_path / "here"] * 2, "somewhere:1")]
    assert len(list((tmp_path / "here" / "units").iterdir())) == 2
    assert again.measurements["rows"] == result.measurements["rows"]
    experiment.run(SMALL, Path("here"), ray="somewhere:1")
    assert sent[1] == (trial.run_trial, [], "somewhere:1")


def test_a_damaged_result_is_named(made, monkeypatch):
    folder, _, _ = made
    path = Trial("softmax", "max", False, BUDGET, folder).path
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    monkeypatch.setattr(experiment, "run_jobs", lambda *given, **named: [])
    try:
        with pytest.raises(UserError, match=r"max-softmax-plain.*is damaged.*delete it"):
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
    assert set(cost["ratio"]) == {"softmax", "hard"}
    assert 0.2 < cost["ratio"]["hard"] < 10
    assert cost["milliseconds"]["softmax"] > 0
    assert made[1].measurements["unit_seconds"] > 0


@pytest.mark.slow
def test_a_leaderboard_in_processes_with_all_drop_in_methods(default_jax, tmp_path, capsys):
    result = experiment.run(FULL, tmp_path)
    check_rows(result, FULL)
    rows = rows_of(result)
    check_row(tmp_path, rows["augmented", "max", "scalable-softmax"], FULL.budget)
    plain = rows["trained", "max", "softmax"]
    assert plain["mean"][0] > 0.5
    assert plain["sharpness"][0] > 1.2 * plain["sharpness"][-1]
    learned = rows["trained", "max", "scalable-softmax"]["learned"]
    assert set(learned) == {"scale", "bias"}
    assert learned["scale"][0] != learned["scale"][1]
    narrow = rows["augmented-drop-in", "max", "softmax"]["accuracy"]
    assert narrow == rows["augmented", "max", "softmax"]["accuracy"]
    assert narrow != rows["drop-in", "max", "softmax"]["accuracy"]
    report.show(result)
    shown = capsys.readouterr().out
    for track in TRACKS:
        assert f"Track {track}" in shown
        assert TRACKS[track].what[1:] in " ".join(shown.split())
    best = rows["trained", "max", "scalable-softmax"]
    assert share(best["mean"][-1], best["std"][-1]) in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "Who did not take part" in shown
    assert "standard deviation over 2 seeds" in " ".join(shown.split())
