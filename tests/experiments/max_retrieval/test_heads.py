"""Trained heads as a file: whole, checked on reading, and those that come with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharpmax import UserError
from sharpmax.experiments.max_retrieval import heads
from sharpmax.experiments.max_retrieval.settings import Training
from sharpmax.results import Result

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("task", "seeds"), [("max", 10), ("most-frequent", 4)])
def test_those_of_the_package(task, seeds):
    found = heads.load(task)
    assert found.training == Training(task=task)
    assert found.seeds == tuple(range(seeds))
    assert set(found.made_by) == {"sharpmax", "jax", "optax"}
    assert all(np.isfinite(array).all() for array in found.weights.values())
    one, other = found.of(0), found.of(seeds - 1)
    assert all((one[name] != other[name]).any() for name in one)


def test_those_of_the_package_are_those_of_the_published_table():
    published = Result.load(ROOT / "results" / "table1.json").measurements["heads_sha256"]
    assert heads.load("max").sha256 == published
    policies = Result.load(ROOT / "results" / "policies.json").measurements["tasks"]
    for task, found in policies.items():
        assert found["heads_sha256"] == heads.load(task).sha256


def test_saved_and_read_back(tmp_path):
    found = heads.load("max")
    path = found.save(tmp_path / "again.safetensors")
    again = heads.load(path)
    assert (again.training, again.seeds, again.sha256) == (
        found.training,
        found.seeds,
        found.sha256,
    )
    for name, array in found.weights.items():
        np.testing.assert_array_equal(again.weights[name], array)


def test_some_of_them():
    found = heads.load("max")
    few = found.only((3, 1))
    assert few.seeds == (3, 1)
    for name, array in few.of(1).items():
        np.testing.assert_array_equal(array, found.of(1)[name])
    assert found.only(None) is found


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
    found = heads.load("max")
    lacking = {name: array for name, array in found.weights.items() if name != "key"}
    heads.Heads(found.training, found.seeds, lacking, found.made_by).save(other)
    with pytest.raises(UserError, match="unexpected names or shapes of key"):
        heads.load(other)
