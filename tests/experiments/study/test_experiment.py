"""The study: interrupted runs give the same result, partial ones are useful."""

from __future__ import annotations

import json

import pytest
from study.tiny import CONFIG, provide

from sharpmax import report
from sharpmax._errors import UserError
from sharpmax.experiments import cells
from sharpmax.experiments.study import conditions, experiment
from sharpmax.experiments.study.config import Config
from sharpmax.hf.tune.calibrate import NothingToGain
from sharpmax.hf.tune.calibration import Calibration, architecture_of
from sharpmax.results import Result
from sharpmax.results.calibration import Head

POLICIES = ["plain", "paper", "log-length:128"]


def measurements(result: Result) -> dict:
    return json.loads(result.model_dump_json())["measurements"]


def test_a_stopped_run_resumes_to_the_same_result(monkeypatch, tmp_path):
    provide(monkeypatch, tmp_path)
    whole = experiment.run(CONFIG, tmp_path / "whole", only=POLICIES)
    measure, calls = cells.Cell.measure, []

    def stop(cell, model, tokenizer):
        calls.append(cell.name)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return measure(cell, model, tokenizer)

    monkeypatch.setattr(cells.Cell, "measure", stop)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(CONFIG, tmp_path / "stopped", only=POLICIES)
    shares = []
    resumed = experiment.run(
        CONFIG, tmp_path / "stopped", only=POLICIES, progress=lambda *given: shares.append(given)
    )
    assert measurements(resumed) == measurements(whole)
    assert len(calls) == 3 * 6 + 1  # the call that was stopped is repeated, no other
    # Lookup is measured under all conditions before anything else.
    assert calls[:6] == ["lookup-8", "lookup-16"] * 3
    assert shares[-1] == ("measuring tiny:", 18, 17, 1.0)


def test_the_result_says_what_was_measured(monkeypatch, tmp_path):
    provide(monkeypatch, tmp_path)
    with pytest.raises(UserError, match="no measurement of a plain model"):
        experiment.run(CONFIG, tmp_path, only=["paper"])
    result = experiment.run(CONFIG, tmp_path, only=["plain", "log-length:128"])
    found = measurements(result)
    assert list(found["models"]["tiny"]["facts"]) == ["plain", "log-length:128", "paper"]
    assert found["models"]["tiny"]["notes"] == ["random weights"]
    assert {row["task"] for row in found["rows"]} == {"lookup", "hellaswag"}
    pool = next(
        row for row in found["pools"] if (row["group"], row["condition"]) == ("lookup", "paper")
    )
    assert (pool["cells"], pool["measured"], pool["prompts"]) == (2, 2, 12)
    assert pool["compared"]["p_adjusted"] >= pool["compared"]["p"]
    assert {row["verdict"] for row in found["verdicts"]} <= {"unfinished", "harms"}
    content = report.describe(result)
    assert "Not measured yet for tiny: 10 of 16 cells of lookup" in " ".join(content.sentences)
    report.draw(result)
    report.show(result)


def test_what_is_finished_is_collected_without_loading_a_model(monkeypatch, tmp_path):
    types = provide(monkeypatch, tmp_path)
    whole = experiment.run(CONFIG, tmp_path, only=["plain"])
    assert len(types) == 1
    assert measurements(experiment.run(CONFIG, tmp_path, only=[])) == measurements(whole)
    assert len(types) == 1
    report.draw(whole)  # a chart without any comparison
    with pytest.raises(UserError, match=r"no measurement .*empty: leave out"):
        experiment.run(CONFIG, tmp_path / "empty", only=[])


def test_calibrations_are_made_once_in_float32(monkeypatch, tmp_path):
    types = provide(monkeypatch, tmp_path)
    made = []

    def calibrate(name, sizes, precise, part, report):
        made.append(name)
        report(1.0)
        raise NothingToGain("nothing to calibrate on this task")

    monkeypatch.setattr(conditions, "_make_calibration", calibrate)
    options = {"only": ["plain", "calibrate"]}
    result = experiment.run(CONFIG, tmp_path, **options)
    assert types == ["float32", "float32"]
    assert made == ["calibrate"]
    facts = measurements(result)["models"]["tiny"]["facts"]
    assert facts["calibrate"] == {"failure": "nothing to calibrate on this task"}
    rows = measurements(result)["rows"]
    differences = {row["compared"]["difference"] for row in rows if row["condition"] == "calibrate"}
    assert differences == {0.0}  # the condition leaves the model plain
    assert measurements(experiment.run(CONFIG, tmp_path, **options)) == measurements(result)
    assert made == ["calibrate"]


def test_other_settings_are_refused(monkeypatch, tmp_path):
    provide(monkeypatch, tmp_path)
    experiment.run(CONFIG, tmp_path, only=["plain"])
    with pytest.raises(UserError, match="was measured with other settings: repeat"):
        experiment.run(Config(model="tiny", seed=1), tmp_path, only=["plain"])


@pytest.mark.parametrize(
    ("config", "only", "message"),
    [
        (Config(), ["plain", "tuna"], "unknown condition 'tuna': expected one of plain, tune"),
        (Config(model="gpt2"), None, "model 'gpt2': the study measures smollm2, gemma-3-270m"),
    ],
)
def test_unknown_names_are_refused_before_any_work(tmp_path, config, only, message):
    with pytest.raises(UserError, match=message):
        experiment.run(config, tmp_path / "study", only=only)
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_ruler_and_tuning(monkeypatch, tmp_path):
    pytest.importorskip("lm_eval")
    given = {}

    def tune(model, tokenizer, *, resume, progress, **options):
        given.update(options)
        assert resume.name == "tune.part.json"
        return Calibration(
            model=options["name"],
            weights="those in float32",
            architecture=architecture_of(model),
            method={"command": "tune"},
            from_tokens=128,
            heads=(Head(layer=0, head=1, rate=0.5),),
        )

    monkeypatch.setattr(conditions, "tune", tune)
    types = provide(monkeypatch, tmp_path, ruler_tokens=(900,), save_memory=True)
    result = experiment.run(CONFIG, tmp_path, only=["plain", "tune"])
    assert types == ["float32", "float32"]
    assert given == {"steps": 2, "save_memory": True, "name": "a tiny model"}
    assert (tmp_path / "tiny" / "tune.json").exists()
    found = measurements(result)
    assert found["models"]["tiny"]["facts"]["tune"] == {"changed_heads": 1}
    (verdict,) = found["verdicts"]
    assert verdict["condition"] == "tune"
    assert verdict["verdict"] != "unfinished"
    ruler = [row for row in found["rows"] if row["group"] == "ruler"]
    assert [row["condition"] for row in ruler] == ["plain", "tune"]
    assert ruler[0]["log_probability"] != ruler[1]["log_probability"]
    assert "Not measured yet for tiny: 12 of 16" in " ".join(report.describe(result).sentences)
