"""Errors of the command: one line on standard error, an exit code, and nothing left behind."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

import sharpmax
from sharpmax import cli

SCRIPT = Path(sys.executable).with_name("sharpmax")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("reproduce", "figure99"),
            "cannot reproduce 'figure99': expected one of table1, unknowns, policies, figure1, ",
        ),
        (
            ("reproduce", "figure1", "--quick"),
            "--quick goes with table1, unknowns, train-normalisers, not with figure1",
        ),
        (
            ("reproduce", "figure5", "--processes", "2"),
            "--processes 2 goes with table1, unknowns, policies, figure6, corollary, not with figure5",
        ),
        (
            ("reproduce", "figure1", "--model", "x"),
            "--model x goes with figure3, tune-comparison, study, not with figure1",
        ),
        (("reproduce", "table1", "--processes", "0"), "Invalid value for '--processes'"),
        (("reproduce",), "Missing argument"),
        (("reproduce", "figure1", "--colour"), "No such option: --colour"),
        (("reproduce", "figure1", "--out", "/proc/nowhere"), "/proc/nowhere"),
        (("dance",), "No such command 'dance'"),
        (("leaderboard", "--method", "magic"), "unknown method 'magic': expected one of softmax, "),
        (("leaderboard", "--track", "fast"), "unknown track 'fast': expected one of drop-in, "),
        (("leaderboard", "--steps", "150"), "a positive multiple of 100 steps, got 150"),
        (
            ("leaderboard", "--ray", "auto", "--processes", "2"),
            "--processes 2 is for this machine and --ray auto for a cluster",
        ),
    ],
)
def test_an_error_is_one_line_and_leaves_nothing(arguments, message, tmp_path, monkeypatch, fail):
    monkeypatch.chdir(tmp_path)
    assert message in fail(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (sharpmax.UserError("give\n  another"), 2, "sharpmax: give another\n"),
        (NotImplementedError("not this model"), 2, "sharpmax: not this model\n"),
        (OSError(errno.ENOSPC, "No space left", "a.json"), 2, "sharpmax: a.json: No space left\n"),
        (OSError("broken"), 2, "sharpmax: the system: broken\n"),
        (KeyboardInterrupt(), 130, "sharpmax: stopped\n"),
    ],
)
def test_exit_codes(error, code, line, monkeypatch, run):
    def raise_error(arguments):
        raise error

    monkeypatch.setattr(cli, "_run", raise_error)
    assert run("scan") == (code, "", line)


def test_ctrl_c_inside_a_command(monkeypatch, run):
    """typer turns it into an exception or an exit code of its own, depending on the release."""

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("sharpmax.cli.commands.doctor.check_packages", interrupt)
    assert run("doctor") == (130, "", "sharpmax: stopped\n")


def test_an_unexpected_error_keeps_its_traceback(monkeypatch, run):
    monkeypatch.setattr("sharpmax.cli.commands.doctor.check_packages", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("doctor")


def test_a_real_process_ends_as_shells_expect(tmp_path):
    done = subprocess.run(
        [SCRIPT, "reproduce", "figure99"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sharpmax: cannot reproduce 'figure99'")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_closes_the_pipe():
    command = f"{sys.executable} -m sharpmax doctor --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr
