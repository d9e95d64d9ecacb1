"""The comparison: interrupted runs give the same result, partial ones are useful."""

from __future__ import annotations

import json

import pytest
from small_data import provide_data
from tune_comparison.tiny import accept_any_gain, loaded, small

from sharpmax import report
from sharpmax._errors import UserError
from sharpmax.experiments import cells
from sharpmax.experiments.tune_comparison import experiment
from sharpmax.results import Result


@pytest.fixture
def data(monkeypatch, tmp_path):
    provide_data(monkeypatch, tmp_path / "data")
    accept_any_gain(monkeypatch)


def numbers(result: Result) -> dict:
    """Return the measurements without times."""
    content = json.loads(result.model_dump_json())["measurements"]
    for facts in content["finished"].values():
        facts.pop("seconds", None)
    return content


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_result(monkeypatch, tmp_path, data):
    whole = experiment.run(small(), tmp_path / "whole", loaded=loaded())
    measure, calls = cells.Cell.measure, []

    def stop(cell, model, tokenizer):
        calls.append(cell.name)
        if len(calls) in (3, 20):
            raise KeyboardInterrupt
        return measure(cell, model, tokenizer)

    monkeypatch.setattr(cells.Cell, "measure", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            experiment.run(small(), tmp_path / "stopped", loaded=loaded())
    resumed = experiment.run(small(), tmp_path / "stopped", loaded=loaded())
    assert numbers(resumed) == numbers(whole)
    assert len(calls) == 3 * 12 + 9 + 2  # law-power has fewer cells; two calls were stopped

    rows = whole.measurements["rows"]
    assert {row["condition"] for row in rows} == {"plain", "tune-1", "paper", "law-power"}
    short = {row["condition"]: row for row in rows if row["cell"] == "hellaswag"}
    assert short["tune-1"]["identical"] == 1  # no item is longer than 128 tokens
    assert short["paper"]["identical"] < 1
    pooled = next(row for row in rows if row["pooled"] and row["condition"] == "tune-1")
    assert pooled["questions"] == 5 * 24
    assert len(whole.measurements["heads"]["rows"]) == 8

    content = report.describe(whole)
    assert content.sentences[0].startswith("Asked for one of")
    page = report.write([whole], tmp_path / "page.html", names=["comparison"])
    assert "What it costs" in page.read_text()
    report.draw(whole)


def test_only_some_conditions_make_a_partial_result(monkeypatch, tmp_path, data):
    shares = []
    arguments = {"folder": tmp_path, "loaded": loaded(), "threads": 1}
    first = experiment.run(
        small(), only=["paper"], progress=lambda *given: shares.append(given), **arguments
    )
    assert list(first.measurements["finished"]) == ["paper"]
    assert first.measurements["heads"] is None
    assert shares[-1] == ("measuring", 12, 11, 1.0)
    assert "has not been measured yet" in report.describe(first).sentences[0]
    both = experiment.run(small(), only=["plain"], **arguments)
    assert list(both.measurements["finished"]) == ["plain", "paper"]
    compared = [row for row in both.measurements["rows"] if "compared" in row]
    assert {row["condition"] for row in compared} == {"paper"}
    report.draw(both)

    with pytest.raises(UserError, match="was measured with other settings: repeat"):
        experiment.run(small(seed=1), only=["plain"], **arguments)
    monkeypatch.setattr(experiment.torch, "get_num_threads", lambda: 2)
    with pytest.raises(UserError, match="was measured with 1 threads, not 2: repeat"):
        experiment.run(small(), only=["plain"], **arguments)


def test_unknown_conditions_are_refused_before_any_work(tmp_path):
    with pytest.raises(UserError, match="unknown condition 'tuna': expected one of plain, tune-1"):
        experiment.run(small(), tmp_path, only=["plain", "tuna"])
