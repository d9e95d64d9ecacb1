"""One command at a time writes a result, and one that was stopped while writing can be repeated."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

import sharpmax.hf as shf
from sharpmax import UserError, report
from sharpmax.cli.output import claim_files

HOLDER = """
import sys, time
from pathlib import Path
from sharpmax.cli.output import claim_files
with claim_files([Path(sys.argv[1])], False) as claim:
    if sys.argv[2] == "writing":
        with claim.writing():
            Path(sys.argv[1]).write_text("half")
            print("begun", flush=True)
            time.sleep(600)
    print("begun", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(path, state):
    """Have a process hold the files of a command; it is killed at the end of the block."""
    command = [sys.executable, "-c", HOLDER, str(path), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            yield
        finally:
            process.kill()


def files(folder):
    return sorted(file.name for file in folder.iterdir())


def test_two_commands_at_a_time(saved_model, tmp_path, fail, succeed):
    out = tmp_path / "out"
    with holder(out / "scan.json", "working"):
        error = fail("scan", saved_model, "--lengths", "4,8", "--out", out)
        assert "scan.json is being written by another command: wait for it" in error
        assert files(out) == [".scan.json.lock"]
    succeed("scan", saved_model, "--lengths", "4,8", "--out", out)
    assert ".scan.json.lock" not in files(out)


def test_a_command_that_fails_leaves_no_folder(saved_model, tmp_path, fail):
    fail("scan", tmp_path / "no_model", "--out", tmp_path / "a" / "b")
    assert files(tmp_path) == []


def test_killed_while_writing(tmp_path):
    path = tmp_path / "scan.json"
    with holder(path, "writing"):
        pass
    with claim_files([path], False) as claim:
        assert claim.overwrite
        with claim.writing():
            path.write_text("whole")
    with pytest.raises(UserError, match="exists already"), claim_files([path], False):
        pass
    assert files(tmp_path) == ["scan.json"]


@pytest.mark.parametrize("stopped_in", ["save_picture", "write"])
def test_a_scan_that_was_stopped_while_writing_is_finished(
    saved_model, tmp_path, run, succeed, fail, monkeypatch, stopped_in
):
    words = ["scan", saved_model, "--lengths", "4,8", "--out", tmp_path / "out"]

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report, stopped_in, stop)
        assert run(*words).code == 130
    before = shf.Scan.load(tmp_path / "out" / "scan.json")
    assert "scan.html" not in files(tmp_path / "out")
    succeed(*words)
    after = shf.Scan.load(tmp_path / "out" / "scan.json")
    np.testing.assert_array_equal(before.entropy, after.entropy)
    names = files(tmp_path / "out")
    assert [name for name in names if not name.endswith(".npz")] == [
        "scan.html", "scan.json", "scan.png", "scan.svg",
    ]  # fmt: skip
    assert "exists already" in fail(*words)


def test_a_reader_who_leaves_does_not_make_a_result_unfinished(
    saved_model, tmp_path, run, fail, monkeypatch
):
    def broken(result):
        raise UserError("the reader has gone")

    words = ["scan", saved_model, "--lengths", "4,8", "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr(report, "show", broken)
        assert run(*words).code == 2
    assert "exists already" in fail(*words)
