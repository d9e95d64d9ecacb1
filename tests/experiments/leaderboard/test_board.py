"""The leaderboard, small: complete, resumable, and its numbers those of the heads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sharpmax import UserError, report
from sharpmax.experiments import cluster, jobs
from sharpmax.experiments.leaderboard import board, unit
from sharpmax.experiments.leaderboard.board import Config
from sharpmax.experiments.leaderboard.entries import TRACKS
from sharpmax.experiments.leaderboard.unit import Budget, Unit
from sharpmax.experiments.max_retrieval.designs import DESIGNS
from sharpmax.experiments.max_retrieval.exam import Exam, examine
from sharpmax.experiments.max_retrieval.train import Job, Trained, read
from sharpmax.report.numbers import share

BUDGET = Budget(
    steps=200, tuning_steps=100, rates=(1e-3, 3e-3), seeds=(0, 1), sizes=(5, 16, 64), sets=40
)
SMALL = Config(
    BUDGET, tasks=("max", "most-frequent"), methods=("scalable-softmax", "selective"), rounds=2
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    seen = []
    result = board.run(SMALL, folder, progress=lambda *told: seen.append(told))
    return folder, result, seen


def rows_of(result):
    return {(row["track"], row["task"], row["method"]): row for row in result.measurements["rows"]}


def test_every_row_is_there_with_numbers_or_a_reason(made):
    _, result, _ = made
    rows = rows_of(result)
    assert len(rows) == 4 * 2 * 3
    for (track, task, method), row in rows.items():
        absent = method == "selective" or (task == "most-frequent" and "augmented" in track)
        assert ("reason" in row) is absent
        if not absent:
            assert np.shape(row["accuracy"]) == (2, 3)
            np.testing.assert_allclose(row["mean"], np.mean(row["accuracy"], axis=0))
            np.testing.assert_allclose(row["std"], np.std(row["accuracy"], axis=0, ddof=1))
            assert len(row["sharpness"]) == 3
            taken = next(rate for rate in row["tuning"] if rate not in row["given_up"])
            assert row["learning_rate"] == float(taken)
            assert list(row["tuning"].values()) == sorted(row["tuning"].values())
            assert ("learned" in row) is TRACKS[track].own
            assert ("dispersion" in row) is (task == "max")


def test_heads_learn_and_sharpness_falls(made):
    rows = rows_of(made[1])
    plain = rows["trained", "max", "softmax"]
    assert plain["mean"][0] > 0.5
    assert plain["sharpness"][0] > 1.2 * plain["sharpness"][-1]
    learned = rows["trained", "max", "scalable-softmax"]["learned"]
    assert set(learned) == {"scale", "bias"}
    assert learned["scale"][0] != learned["scale"][1]


def test_what_is_put_in_is_put_into_the_same_heads(made):
    rows = rows_of(made[1])
    for task in ("max", "most-frequent"):
        own, dropped = rows["trained", task, "softmax"], rows["drop-in", task, "softmax"]
        assert own["accuracy"] == dropped["accuracy"]
        assert rows["drop-in", task, "scalable-softmax"]["final_loss"] == own["final_loss"]
    narrow = rows["augmented-drop-in", "max", "softmax"]["accuracy"]
    assert narrow == rows["augmented", "max", "softmax"]["accuracy"]
    assert narrow != rows["drop-in", "max", "softmax"]["accuracy"]


def test_a_row_is_what_an_exam_of_its_heads_finds(made):
    folder, result, _ = made
    row = rows_of(result)["augmented", "max", "scalable-softmax"]
    one = Unit("scalable-softmax", "max", True, BUDGET, folder)
    design = DESIGNS["scalable-softmax"]
    for place, seed in enumerate(BUDGET.seeds):
        job = Job(one.training(BUDGET.steps, row["learning_rate"]), seed, folder)
        assert job.training.narrowest == BUDGET.narrowest
        weights = read(job.path).weights[BUDGET.steps]
        methods = {"own": design.normaliser}
        marks = examine(Exam(weights, True, "max", seed, BUDGET.sizes, 40, methods, design))
        np.testing.assert_allclose(
            row["accuracy"][place], marks.right["own"].mean(1), atol=1.01 / 40
        )
        assert row["learned"]["scale"][place] == pytest.approx(
            design.normaliser.scale + weights["normaliser_scale"].item()
        )


def test_progress_covers_every_unit_once(made):
    units = {place for what, count, place, share in made[2] if what == "training" and share == 1}
    assert units == set(range(6))
    shares = [share for what, _, place, share in made[2] if what == "training" and place == 0]
    assert shares == sorted(shares)


def test_what_is_finished_is_not_done_again_and_what_is_lost_comes_back(made, monkeypatch):
    """A killed run: one unit without its record, one without a training as well."""
    folder, result, _ = made
    one = Unit("softmax", "max", False, BUDGET, folder)
    before = json.loads(one.record.read_text())
    one.record.unlink()
    rate = before["learning_rate"]
    Job(one.training(BUDGET.steps, rate), 1, folder).path.unlink()
    performed = []
    run = jobs.run

    def watched(function, wanted, **named):
        if function is not unit.perform:
            return [{}]  # of timing
        performed.extend(wanted)
        return run(function, wanted, **named)

    monkeypatch.setattr(jobs, "run", watched)
    again = board.run(SMALL, folder)
    assert performed == [one]
    assert again.measurements["rows"] == result.measurements["rows"]


def test_on_a_cluster_the_same_units_are_sent_and_kept_here(made, tmp_path, monkeypatch):
    """What a cluster does with them is tested there; here it answers with what is known."""
    folder, result, _ = made
    sent = []

    def pretend(function, units, *, address, progress, keep):
        sent.append((function, [one.folder for one in units], address))
        for place, one in reversed(list(enumerate(units))):
            keep(place, json.loads(one._replace(folder=folder).record.read_text()))

    monkeypatch.setattr(cluster, "run", pretend)
    monkeypatch.setattr(jobs, "run", lambda *given, **named: [{}])  # of timing
    monkeypatch.chdir(tmp_path)
    again = board.run(SMALL, Path("here"), ray="somewhere:1")
    assert sent == [(unit.perform, [tmp_path / "here"] * 6, "somewhere:1")]
    assert len(list((tmp_path / "here" / "units").iterdir())) == 6
    assert again.measurements["rows"] == result.measurements["rows"]
    board.run(SMALL, Path("here"), ray="somewhere:1")
    assert sent[1] == (unit.perform, [], "somewhere:1")


def test_a_damaged_record_is_named(made, monkeypatch):
    folder, _, _ = made
    path = Unit("softmax", "max", True, BUDGET, folder).record
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    monkeypatch.setattr(jobs, "run", lambda *given, **named: [])
    try:
        with pytest.raises(UserError, match=r"max-softmax-augmented.*is damaged.*delete it"):
            board.run(SMALL, folder)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"methods": ("magic",)}, "unknown method 'magic': expected one of softmax"),
        ({"tasks": ("poetry",)}, "unknown task 'poetry': expected one of max"),
        ({"tracks": ("fast",)}, "unknown track 'fast': expected one of drop-in"),
        ({"budget": replace(BUDGET, steps=150)}, "a positive multiple of 100 steps, got 150"),
        ({"budget": replace(BUDGET, rates=())}, "at least one learning rate"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_work(changed, message, tmp_path):
    with pytest.raises(UserError, match=message):
        board.run(replace(SMALL, **changed), tmp_path)
    assert not list(tmp_path.iterdir())


def test_records_of_other_budgets_are_other_records(tmp_path):
    base = Unit("hard", "max", False, BUDGET, tmp_path)
    others = [
        base._replace(augmented=True),
        base._replace(task="second-max"),
        base._replace(design="relu"),
        base._replace(budget=replace(BUDGET, sets=41)),
    ]
    assert len({one.record for one in [base, *others]}) == 5


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A unit, and a way to say how its trainings end: by rate, in the short and in the whole."""
    ends: dict[tuple[int, float], float] = {}

    def pretend(job, tell):
        steps, rate = job.training.steps, job.training.learning_rate
        return Trained(job.seed, steps, np.full(steps // 100, ends[steps, rate]), {}, 1.0)

    monkeypatch.setattr(unit, "train", pretend)
    one = Unit("hard", "max", False, BUDGET, tmp_path)

    def trained(**said):
        ends.update({(100, 1e-3): said["short"][0], (100, 3e-3): said["short"][1]})
        whole = BUDGET.steps
        ends.update({(whole, 1e-3): said["whole"][0], (whole, 3e-3): said["whole"][1]})
        told = unit._shares(one, lambda share: None)
        tuning = unit._tune(one, told)
        taken, given_up = unit._train(one, tuning, told)
        return tuning, taken.rate, [each.rate for each in given_up]

    return trained


def test_the_rate_of_the_lowest_loss_is_taken(pretended):
    assert pretended(short=(0.5, 0.4), whole=(0.1, 0.2)) == ({3e-3: 0.4, 1e-3: 0.5}, 3e-3, [])


def test_a_rate_that_diverges_is_not_taken(pretended):
    nan = float("nan")
    assert pretended(short=(0.5, nan), whole=(0.1, nan)) == ({1e-3: 0.5, 3e-3: None}, 1e-3, [])
    assert pretended(short=(0.5, 0.4), whole=(0.1, nan))[1:] == (1e-3, [3e-3])


def test_a_rate_that_does_not_bear_the_whole_training_is_given_up(pretended):
    assert pretended(short=(0.5, 0.4), whole=(0.1, 2.3))[1:] == (1e-3, [3e-3])


def test_if_none_does_the_best_of_them_is_taken(pretended):
    assert pretended(short=(0.5, 0.4), whole=(0.6, 2.3))[1:] == (1e-3, [3e-3])
    assert pretended(short=(0.5, 0.4), whole=(0.9, 0.8))[1:] == (3e-3, [1e-3])


def test_cost_is_a_ratio_to_softmax(made):
    cost = made[1].measurements["cost"]
    assert cost["ratio"]["softmax"] == 1
    assert set(cost["ratio"]) == {"softmax", "scalable-softmax"}
    assert 0.3 < cost["ratio"]["scalable-softmax"] < 5
    assert cost["milliseconds"]["softmax"] > 0
    assert made[1].measurements["unit_seconds"] > 5


def test_the_table_in_the_terminal_has_every_number(made, capsys):
    _, result, _ = made
    report.show(result)
    shown = capsys.readouterr().out
    rows = rows_of(result)
    for track in TRACKS:
        assert f"Track {track}" in shown
        assert TRACKS[track].what[1:] in " ".join(shown.split())
    best = rows["trained", "max", "scalable-softmax"]
    assert share(best["mean"][-1], best["std"][-1]) in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "Who did not take part" in shown
    assert "standard deviation over 2 seeds" in " ".join(shown.split())
