"""The comparison of serving engines is resumed part by part. The engines are not installed here."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from sharpmax.results import Result

FOLDER = Path(__file__).parents[2] / "tools" / "serving"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return the tool, with parts that say how often they ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    run = import_module("run")
    calls: list[str] = []

    def part(name):
        def measure(loaded):
            calls.append(name)
            return {"call": len(calls)}

        return measure

    monkeypatch.setattr(run, "PARTS", {name: part(name) for name in ("a", "b", "throughput")})
    monkeypatch.setattr(run, "load", lambda: None)
    run.calls = calls
    yield run
    for name in set(sys.modules) - before:
        if (
            getattr(sys.modules[name], "__file__", None)
            and FOLDER in Path(sys.modules[name].__file__).parents
        ):
            del sys.modules[name]


def start(run, monkeypatch, *names):
    monkeypatch.setattr(sys, "argv", ["run.py", "serving.json", *names])
    run.main()
    return Result.load("serving.json")


def test_only_missing_parts_run(run, monkeypatch):
    first = start(run, monkeypatch)
    assert run.calls == ["a", "b"]  # not throughput, which must be named
    assert start(run, monkeypatch) == first
    assert run.calls == ["a", "b"]


def test_named_parts_are_repeated_and_the_others_kept(run, monkeypatch):
    first = start(run, monkeypatch)
    result = start(run, monkeypatch, "throughput", "b")
    assert run.calls == ["a", "b", "b", "throughput"]
    assert list(result.measurements) == ["a", "b", "throughput"]
    assert result.measurements["a"] == first.measurements["a"]
    assert result.measurements["b"]["call"] == 3


def test_a_part_that_fails_is_not_saved_and_those_before_it_are(run, monkeypatch):
    def fails(loaded):
        raise SystemExit("serving: off by 1")

    monkeypatch.setitem(run.PARTS, "b", fails)
    with pytest.raises(SystemExit, match="off by 1"):
        start(run, monkeypatch)
    assert list(Result.load("serving.json").measurements) == ["a"]


def test_parts_of_another_calibration_are_not_kept(run, monkeypatch):
    start(run, monkeypatch)
    config = run.make_config()
    monkeypatch.setattr(run, "make_config", lambda: config | {"calibration_sha256": "other"})
    start(run, monkeypatch, "a")
    assert list(Result.load("serving.json").measurements) == ["a"]


def test_an_unknown_part_is_named(run, monkeypatch):
    with pytest.raises(SystemExit, match="unknown part c: expected a, b, throughput"):
        start(run, monkeypatch, "c")


def test_answers_that_differ_are_refused(run):
    comparison = import_module("comparison")
    part = {"largest_difference": 1e-5, "tolerance": 2e-5, "effect": 1.0}
    comparison.require_equal("same", part)
    for change in ({"largest_difference": 3e-5}, {"effect": 1e-4}, {"tolerance": float("nan")}):
        with pytest.raises(comparison.Failed, match="other is off by"):
            comparison.require_equal("other", part | change)
