"""Trained heads as a file: complete, checked on reading, in the repository and in the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharpmax import UserError
from sharpmax.experiments.max_retrieval import heads
from sharpmax.experiments.max_retrieval.train import Training
from sharpmax.results import Result

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("task", "seeds"), [("max", 10), ("most-frequent", 4)])
def test_the_repository_has_the_heads_of_every_task(task, seeds):
    trained = heads.load(task)
    assert trained.training == Training(task=task)
    assert trained.seeds == tuple(range(seeds))
    assert set(trained.made_by) == {"sharpmax", "jax", "optax"}
    assert all(np.isfinite(array).all() for array in trained.weights.values())
    first, last = trained.of(0), trained.of(seeds - 1)
    assert all((first[name] != last[name]).any() for name in first)


def test_the_heads_of_the_repository_are_those_of_the_published_results():
    published = Result.load(ROOT / "results" / "table1.json").measurements["heads_sha256"]
    assert heads.load("max").sha256 == published
    tasks = Result.load(ROOT / "results" / "policies.json").measurements["tasks"]
    for task, measured in tasks.items():
        assert measured["heads_sha256"] == heads.load(task).sha256


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Pretend that the module is in site-packages and the working directory is anywhere."""
    module = tmp_path / "lib" / "site-packages" / "sharpmax" / "experiments" / "max_retrieval"
    monkeypatch.setattr(heads, "__file__", str(module / "heads.py"))
    monkeypatch.chdir(tmp_path)


def test_the_package_has_two_heads_for_the_explorer(installed):
    packaged = heads.load_available()
    assert packaged.seeds == (0, 1)


def test_packaged_heads_are_the_first_of_the_full_set():
    packaged, full = heads._read(heads.PACKAGED), heads.load_available()
    assert len(full.seeds) == 10
    assert packaged.sha256 == full.only((0, 1)).sha256


def test_without_a_clone_one_line_says_where_the_heads_are(installed):
    with pytest.raises(UserError) as caught:
        heads.load("most-frequent")
    message = str(caught.value)
    assert "'most-frequent' are not part of the installed package: run this in a clone" in message
    assert "results/heads" in message
    assert "sharpmax reproduce table1" in message
    assert "\n" not in message


def test_an_installed_package_finds_the_heads_of_the_clone_it_runs_in(installed, monkeypatch):
    monkeypatch.chdir(ROOT / "docs")
    assert len(heads.load("max").seeds) == 10


def test_saved_heads_are_read_back(tmp_path):
    trained = heads.load("max")
    path = trained.save(tmp_path / "again.safetensors")
    again = heads.load(path)
    assert (again.training, again.seeds, again.sha256) == (
        trained.training,
        trained.seeds,
        trained.sha256,
    )
    for name, array in trained.weights.items():
        np.testing.assert_array_equal(again.weights[name], array)


def test_only_some_seeds():
    trained = heads.load("max")
    few = trained.only((3, 1))
    assert few.seeds == (3, 1)
    for name, array in few.of(1).items():
        np.testing.assert_array_equal(array, trained.of(1)[name])
    assert trained.only(None) is trained


def test_files_that_are_not_heads_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.safetensors does not exist"):
        heads.load(tmp_path / "nothing.safetensors")
    other = tmp_path / "other.safetensors"
    save_file({"x": np.zeros(3)}, other)
    with pytest.raises(UserError, match="does not hold trained heads"):
        heads.load(other)
    other.write_bytes(b"{}")
    with pytest.raises(UserError, match="is damaged or not a safetensors file"):
        heads.load(other)
    trained = heads.load("max")
    lacking = {name: array for name, array in trained.weights.items() if name != "key"}
    heads.Heads(trained.training, trained.seeds, lacking, trained.made_by).save(other)
    with pytest.raises(UserError, match="unexpected names or shapes of key"):
        heads.load(other)
