"""An extended leaderboard keeps earlier rows as they are, and runs what is lacking."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sharpmax import UserError
from sharpmax.experiments.leaderboard import experiment
from sharpmax.experiments.leaderboard.entries import NOT_YET
from sharpmax.experiments.leaderboard.experiment import RULES, Config
from sharpmax.experiments.leaderboard.extend import Earlier
from sharpmax.experiments.leaderboard.trial import Budget
from sharpmax.results import Result, Stopwatch

BUDGET = Budget(steps=200, tuning_steps=100, seeds=(0, 1), sizes=(16,), sets=40)
EARLIER = Config(BUDGET, ("drop-in", "trained"), ("max",), ("hard", "selective"), rounds=1)


def measured(name, value):
    """What a trial has of one method."""
    numbers = [[value], [value]]
    fields = ("accuracy", "sharpness", "ranked", "dispersion", "ranking")
    return {name: dict.fromkeys(fields, numbers)}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a leaderboard whose trials say which time they ran."""
    performed = []

    def pretend(function, jobs, *, on_result=None, **named):
        if function is experiment.time_steps:
            names = jobs[0].designs
            # As if a step took longer each time.
            ratio = {name: float(1 + len(performed)) for name in names}
            quartiles = {name: [1.0, 2.0] for name in names}
            return [{"rounds": 1, "milliseconds": {}, "ratio": ratio, "ratio_quartiles": quartiles}]
        for index, trial in enumerate(jobs):
            performed.append((trial.design, trial.augmented))
            methods = {}
            for name in trial.methods:
                methods |= measured(name, len(performed) / 100)
            outcome = dict.fromkeys(experiment.TRAINING_FIELDS) | {
                "learned": {},
                "methods": methods,
                "seconds": 1.0,
            }
            on_result(index, outcome)
        return []

    monkeypatch.setattr(experiment, "run_jobs", pretend)

    def start(config, folder, earlier=None):
        performed.clear()
        return experiment.run(config, tmp_path / folder, earlier=earlier), list(performed)

    return start


def rows_of(result):
    return {(row["track"], row["method"]): row for row in result.measurements["rows"]}


def test_only_trials_of_new_rows_run_and_the_others_are_kept(run):
    earlier, _ = run(replace(EARLIER, methods=("relu", "hard")), "first")
    config = replace(EARLIER, methods=("thresholded-differential",))
    result, performed = run(config, "second", Result.model_validate_json(earlier.model_dump_json()))
    assert performed == [("thresholded-differential", False)]  # which cannot be put in
    old, new = rows_of(earlier), rows_of(result)
    assert {name: row for name, row in new.items() if name in old} == old
    assert new.keys() - old.keys() == {
        ("drop-in", "thresholded-differential"),
        ("trained", "thresholded-differential"),
    }
    assert result.config["methods"] == ["hard", "relu", "thresholded-differential"]
    (run_before,) = result.measurements["extensions"]
    assert run_before["earlier"]["command"] == earlier.provenance.command
    assert run_before["new_trials"] == 1
    assert result.measurements["unit_seconds"] == 3 + 1


def test_a_method_that_is_put_in_renews_all_rows_of_the_same_heads(run):
    earlier, _ = run(EARLIER, "first")
    result, performed = run(replace(EARLIER, methods=("infoscale",)), "second", earlier)
    assert performed == [("softmax", False)]
    old, new = rows_of(earlier), rows_of(result)
    accuracy = {new["drop-in", name]["mean"][0] for name in ("softmax", "hard", "infoscale")}
    assert accuracy == {new["trained", "softmax"]["mean"][0]}
    assert new["trained", "hard"] == old["trained", "hard"]


def test_ratios_of_earlier_designs_are_kept(run):
    earlier, _ = run(EARLIER, "first")
    result, _ = run(replace(EARLIER, methods=("relu",)), "second", earlier)
    before, after = (each.measurements["cost"]["ratio"] for each in (earlier, result))
    assert set(after) == {"softmax", "hard", "relu"}
    assert {name: after[name] for name in before} == before
    assert result.measurements["extensions"][0]["new_cost"]["ratio"]["relu"] == after["relu"]


def test_an_extension_can_be_extended(run):
    first, _ = run(EARLIER, "first")
    second, _ = run(replace(EARLIER, methods=("relu",)), "second", first)
    third, performed = run(replace(EARLIER, methods=("sigmoid",)), "third", second)
    assert ("hard", False) not in performed
    assert ("relu", False) not in performed
    assert len(third.measurements["extensions"]) == 2


def test_rows_that_were_never_asked_for_are_named_and_can_follow_later(run):
    earlier, _ = run(replace(EARLIER, tasks=("max", "second-max")), "first")
    new = replace(EARLIER, methods=("relu",))
    part, performed = run(new, "second", earlier)
    assert ("relu", False) in performed
    assert len(performed) == 2  # and softmax, into whose heads relu is put
    rows = {(row["track"], row["task"], row["method"]): row for row in part.measurements["rows"]}
    assert len(rows) == 2 * 2 * 4
    assert rows["trained", "second-max", "relu"]["reason"] == "not measured yet"
    assert rows["drop-in", "second-max", "relu"]["reason"] == "not measured yet"
    assert "needs" in rows["trained", "second-max", "selective"]["reason"]
    whole, performed = run(replace(new, tasks=("max", "second-max")), "third", part)
    assert len(performed) == 2
    assert not [row for row in whole.measurements["rows"] if row.get("reason") == NOT_YET]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"budget": {"steps": 100}}}, "another budget: use the --steps"),
        ({"measurements": {"rules": "anything goes"}}, "made under other rules"),
        ({"provenance": {"packages": {"jax": "0.0.1"}}}, r"made with jax 0\.0\.1: \d.* is install"),
    ],
)
def test_a_leaderboard_from_other_conditions_is_refused(run, changes, message):
    earlier, _ = run(EARLIER, "first")
    content = json.loads(earlier.model_dump_json())
    for field, values in changes.items():
        content[field] |= values
    with pytest.raises(UserError, match=message):
        Earlier.of(Result.model_validate(content), EARLIER, RULES)


def test_another_kind_of_result_is_refused():
    other = Result(
        kind="scan", config={}, seeds=(), measurements={}, provenance=Stopwatch().provenance()
    )
    with pytest.raises(UserError):
        Earlier.of(other, EARLIER, RULES)
