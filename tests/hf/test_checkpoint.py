"""Checkpoints: what was saved is restored for the same job and refused for any other."""

from __future__ import annotations

import numpy as np
import pytest

import sharpmax.hf as shf
from sharpmax._errors import UserError
from sharpmax.hf import checkpoint as module
from sharpmax.hf.checkpoint import Checkpoint
from sharpmax.results import Result

CONFIG = {"seed": 3, "lengths": (4, np.int64(8)), "names": {1: "a"}}


def test_arrays_and_values_are_restored(tmp_path):
    path = tmp_path / "job.json"
    first = Checkpoint(path, "scan", CONFIG)
    array = first.array("seen", (2, 3), -1, np.int8)
    first.arrays["state"] = np.array([0.5, np.nan])
    first.values["step"] = 7
    first.save()
    array[1] = 1  # after the save: lost
    again = Checkpoint(path, "scan", CONFIG)
    restored = again.array("seen", (2, 3), 5)
    assert restored.dtype == np.int8
    np.testing.assert_array_equal(restored, np.full((2, 3), -1))
    np.testing.assert_array_equal(again.arrays["state"], [0.5, np.nan])
    assert again.values == {"step": 7}
    restored[0] = 2  # in place
    again.save()
    assert Checkpoint(path, "scan", CONFIG).arrays["seen"].tolist() == [[2] * 3, [-1] * 3]
    assert len(list(tmp_path.iterdir())) == 2  # arrays of older saves are gone
    again.remove()
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = Checkpoint(None, "scan", CONFIG)
    state.array("a", (1,), 0.0)
    state.save()
    state.remove()
    assert list(tmp_path.iterdir()) == []


def test_frequent_saves_are_skipped(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    path = tmp_path / "job.json"
    state = Checkpoint(path, "scan", CONFIG)
    for seconds, saved in ((4.9, None), (0.2, 2), (4.9, 2), (0.2, 4)):
        now[0] += seconds
        state.values["step"] = state.values.get("step", 0) + 1
        state.save(every=5.0)
        assert Checkpoint(path, "scan", CONFIG).values.get("step") == saved
    state.values["step"] = 9
    state.save()  # without a limit: always
    assert Checkpoint(path, "scan", CONFIG).values["step"] == 9


def test_other_jobs_are_refused_by_name(tmp_path):
    path = tmp_path / "job.json"
    Checkpoint(path, "scan", CONFIG).save()
    with pytest.raises(UserError, match=r"of kind 'scan-checkpoint', not the checkpoint of a tune"):
        Checkpoint(path, "tune", CONFIG)
    with pytest.raises(UserError, match=r"checkpoint of another scan \(seed, names differ\)"):
        Checkpoint(path, "scan", CONFIG | {"seed": 4, "names": {}})
    with pytest.raises(UserError, match=r"checkpoint of another scan \(new differ\)"):
        Checkpoint(path, "scan", CONFIG | {"new": 1})
    with pytest.raises(UserError, match=r"checkpoint of another scan \(seed differ\)"):
        Checkpoint(path, "scan", {name: CONFIG[name] for name in ("lengths", "names")})


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "job.json"
    state = Checkpoint(path, "scan", CONFIG)
    state.array("a", (4,), 1.0)
    state.save()
    (arrays,) = tmp_path.glob("*.npz")
    content = arrays.read_bytes()
    arrays.write_bytes(content[:-1])
    with pytest.raises(UserError, match="damaged: its hash"):
        Checkpoint(path, "scan", CONFIG)
    path.write_text("{")
    with pytest.raises(UserError, match="damaged: not JSON"):
        Checkpoint(path, "scan", CONFIG)


def test_forget_deletes_checkpoints_only(tmp_path):
    path = tmp_path / "result.json"
    shf.forget(path)
    Checkpoint(path, "scan", CONFIG).save()
    saved = Result.load(path)
    saved.model_copy(update={"kind": "scan"}).save(path, overwrite=True)
    with pytest.raises(UserError, match="a result of kind 'scan', not a checkpoint: not deleted"):
        shf.forget(path)
    assert path.exists()
    saved.save(path, overwrite=True)
    shf.forget(path)
    assert not path.exists()


def test_forget_deletes_what_killed_processes_left_of_their_parts(tmp_path):
    path = tmp_path / "job.part.json"
    Checkpoint(path, "evaluate", CONFIG).save()
    left = [
        ".job.part-1.json.a1b2c3d4.part",
        ".job.part-2.0123456789ab.npz.a1b2c3d4.part",
        "job.part-3.0123456789ab.npz",
    ]
    others = ["job.0123456789ab.npz", ".job.json.a1b2c3d4.part", "job.part-1.txt"]
    for name in (*left, *others):
        (tmp_path / name).touch()
    shf.forget(path)
    assert {file.name for file in tmp_path.iterdir()} == set(others)
