"""Results are read back as written, never half written, never replaced without being asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pydantic
import pytest

import sharpmax
from sharpmax import UserError
from sharpmax.results import Result, Stopwatch, provenance, result


def example(**changes) -> Result:
    fields = {
        "kind": "example",
        "config": {"sizes": (16, 32), "rate": 1e-3, "name": "<script>"},
        "seeds": (0, 1),
        "measurements": {"accuracy": np.array([0.5, 0.25]), "best": np.float32(2.0), "none": None},
        "provenance": Stopwatch().provenance(),
    }
    return Result(**(fields | changes))


def test_comes_back_as_it_was(tmp_path):
    arrays = {"weights": np.linspace(0, 1, 7), "codes": np.arange(4, dtype=np.int8)}
    saved = example().with_arrays(**arrays)
    path = saved.save(tmp_path / "new" / "example.json")
    loaded = Result.load(path)
    assert loaded.measurements == {"accuracy": [0.5, 0.25], "best": 2.0, "none": None}
    assert loaded.config == {"sizes": [16, 32], "rate": 1e-3, "name": "<script>"}
    assert loaded.provenance == saved.provenance
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array)
        assert loaded.arrays[name].dtype == array.dtype


def test_says_where_it_comes_from():
    watch = Stopwatch()
    time.sleep(0.01)
    origin = watch.provenance()
    assert origin.sharpmax == sharpmax.__version__
    assert origin.seconds >= 0.01
    assert origin.packages["numpy"] == np.__version__
    assert origin.started.tzinfo is not None
    assert origin.cores >= 1
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode == 0:
        assert origin.commit.partition("+")[0] == head.stdout.strip()


def test_another_repository_s_commit_is_not_ours(tmp_path, monkeypatch):
    copy = tmp_path / "results" / "provenance.py"
    copy.parent.mkdir()
    copy.write_bytes(Path(provenance.__file__).read_bytes())
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(provenance, "__file__", str(copy))
    assert provenance._commit() is None


def test_never_replaces_a_file_unasked(tmp_path):
    path = example().save(tmp_path / "example.json")
    before = path.read_bytes()
    with pytest.raises(
        UserError, match=r"example\.json exists already: choose another place or ask"
    ):
        example(kind="other").save(path)
    assert path.read_bytes() == before
    example(kind="other").save(path, overwrite=True)
    assert Result.load(path).kind == "other"


def test_replacing_leaves_no_old_arrays(tmp_path):
    path = tmp_path / "example.json"
    example().with_arrays(x=np.arange(3)).save(path)
    example().with_arrays(x=np.arange(4)).save(path, overwrite=True)
    assert Result.load(path).arrays["x"].size == 4
    example().save(path, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["example.json"]


def test_arrays_that_a_killed_process_has_left_are_deleted(tmp_path):
    others = ["a.0123456789ab.npz", "example.npz", "example.part.0123456789ab.npz"]
    left = ["example.0123456789ab.npz", ".example.0123456789ab.npz.abcdefgh.part"]
    for name in [*others, *left]:
        (tmp_path / name).touch()
    path = example().with_arrays(x=np.arange(3)).save(tmp_path / "example.json")
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {*others, "example.json", Result.load(path).arrays_file}


def save_often(path, seed):
    for number in range(100):
        example().with_arrays(x=np.array([seed, number % 3])).save(path, overwrite=True)


def test_two_writers_do_not_take_each_other_s_arrays(tmp_path):
    path = tmp_path / "example.json"
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(save_often, [path] * 3, [0, 0, 1]))
    assert Result.load(path).arrays["x"].size == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = example().save(tmp_path / "example.json")
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        example(kind="other").save(path, overwrite=True)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["example.json"]


def test_stopped_between_the_two_files_the_old_result_is_whole(tmp_path, monkeypatch):
    """The new arrays are written, the new JSON is not: the old JSON still finds its own arrays."""
    path = example().with_arrays(x=np.arange(3)).save(tmp_path / "example.json")
    original = result.write_atomically

    def stop_before_json(target, content):
        if target.suffix == ".json":
            raise KeyboardInterrupt
        original(target, content)

    monkeypatch.setattr(result, "write_atomically", stop_before_json)
    with pytest.raises(KeyboardInterrupt):
        example().with_arrays(x=np.arange(9)).save(path, overwrite=True)
    np.testing.assert_array_equal(Result.load(path).arrays["x"], np.arange(3))


def test_a_kill_while_writing_leaves_a_whole_file(tmp_path):
    """Kill -9 a process that rewrites a result without pause: whatever is there is readable."""
    path = tmp_path / "example.json"
    script = (
        "import sys, numpy as np\n"
        "from sharpmax.results import Result, Stopwatch\n"
        "watch = Stopwatch().provenance()\n"
        "for n in range(10**9):\n"
        "    Result(kind='k', config={}, seeds=(n,), measurements={}, provenance=watch)"
        ".with_arrays(x=np.full(20_000, n)).save(sys.argv[1], overwrite=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)])
    try:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    loaded = Result.load(path)
    assert (loaded.arrays["x"] == loaded.seeds[0]).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float64("-inf")])
def test_what_json_cannot_hold_is_refused_by_name(bad):
    with pytest.raises(pydantic.ValidationError, match=r"curve\[1\] is .*, which JSON cannot hold"):
        example(measurements={"curve": [1.0, bad]})


def test_objects_are_refused(tmp_path):
    with pytest.raises(pydantic.ValidationError, match=r"not a valid JSON value"):
        example(config={"path": Path()})
    with pytest.raises(UserError, match="array 'x' holds Python objects"):
        example().with_arrays(x=np.array([object()])).save(tmp_path / "a.json")


def broken(path: Path, **changes) -> Path:
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return path


DAMAGES = [
    (lambda p: p.unlink(), "does not exist"),
    (lambda p: p.write_bytes(p.read_bytes()[:40]), r"is damaged: not JSON \("),
    (lambda p: p.write_bytes(b"\xff\xfe\x00"), "is not a sharpmax result: it is not text"),
    (lambda p: p.write_text("[1, 2]"), "is not a sharpmax result: it has no"),
    (lambda p: broken(p, format="other"), "is not a sharpmax result"),
    (
        lambda p: broken(p, schema_version=99),
        "has schema version 99, this sharpmax reads up to 1: upgrade",
    ),
    (lambda p: broken(p, kind=None), "is damaged: kind: Field required"),
    (lambda p: broken(p, seeds="x"), "is damaged: seeds: "),
    (lambda p: broken(p, extra=1), "is damaged: extra: "),
    (lambda p: broken(p, arrays_file="../secret.npz"), "must be a file name beside it"),
    (lambda p: broken(p, arrays_file="gone.npz"), "needs gone.npz beside it, which is missing"),
    (lambda p: next(p.parent.glob("*.npz")).write_bytes(b"junk"), "its hash is not the one"),
    (lambda p: p.write_text(p.read_text().replace("0.25", "NaN")), "is damaged: measurements: "),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=range(len(DAMAGES)))
def test_damaged_foreign_or_future_files(tmp_path, damage, message):
    path = example().with_arrays(x=np.arange(9)).save(tmp_path / "example.json")
    damage(path)
    with pytest.raises(UserError, match=message) as caught:
        Result.load(path)
    assert "example" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_not_a_result(tmp_path):
    with pytest.raises(UserError, match="is a folder: give the JSON file in it"):
        Result.load(tmp_path)
