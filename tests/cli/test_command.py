"""The command as a user types it: help, mistakes, pictures, and what is left behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sharpmax
from sharpmax.cli import main
from sharpmax.results import Result


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("sharpmax"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_help_names_every_command():
    for arguments in ((), ("--help",), ("-h",)):
        done = run(*arguments)
        assert done.returncode == 0
        for command in ("demo", "reproduce", "leaderboard", "clrs", "app", "doctor"):
            assert command in done.stdout
    module = [sys.executable, "-m", "sharpmax", "--version"]
    done = subprocess.run(module, capture_output=True, text=True, check=True)
    assert done.stdout == f"sharpmax {sharpmax.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("reproduce", "figure99"),
            "cannot reproduce 'figure99': expected one of table1, unknowns, policies, figure1, ",
        ),
        (
            ("reproduce", "figure1", "--quick"),
            "--quick goes with table1, unknowns, not with figure1",
        ),
        (
            ("reproduce", "figure5", "--processes", "2"),
            "--processes 2 goes with table1, unknowns, policies, figure6, not with figure5",
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
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("sharpmax: ")
    assert said.err.count("\n") == 1
    assert message in said.err
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_ends_the_process_as_shells_expect(tmp_path):
    done = run("reproduce", "figure99", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sharpmax: cannot reproduce 'figure99'")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_reproduce_writes_three_files_and_keeps_what_is_there(tmp_path, capsys):
    done = run("reproduce", "figure1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    written = [Path(line) for line in done.stdout.splitlines()[-3:]]
    assert [path.name for path in written] == ["figure1.json", "figure1.png", "figure1.svg"]
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert written[2].read_text().lstrip().startswith("<?xml")
    result = Result.load(written[0])
    assert result.provenance.command.startswith("sharpmax reproduce figure1 --out")

    before = {path: path.read_bytes() for path in written}
    (tmp_path / "figure1.json").unlink()
    assert main(["reproduce", "figure1", "--out", str(tmp_path)]) == 2
    assert re.search(r"figure1\.png.* exists already", capsys.readouterr().err)
    assert written[1].read_bytes() == before[written[1]]
    assert not written[0].exists()
    assert main(["reproduce", "figure1", "--out", str(tmp_path), "--overwrite"]) == 0


def test_demo_scans_a_real_model(tmp_path):
    done = run("demo", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = Result.load(tmp_path / "scan.json")
    assert found.config["lengths"] == [8, 16, 32, 64, 128, 256, 512]
    assert found.arrays["last_entropy"].shape == (7, 30, 9)
    assert f"{found.arrays['last_entropy'][-1].mean():.2f}" in done.stdout
    first = Result.load(tmp_path / "figure3.json").measurements["mean_entropy"]
    assert " ".join(f"{nats:.2f}" for nats in first) in done.stdout
    for name in ("scan.png", "scan.svg", "scan.html", "figure3.png", "figure3.svg"):
        assert (tmp_path / name).stat().st_size > 0
    assert not list(tmp_path.glob("*part*"))


def test_demo_refuses_before_it_writes_anything(tmp_path):
    (tmp_path / "figure3.svg").touch()
    done = run("demo", "--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == ["figure3.svg"]


def test_output_survives_a_reader_that_leaves(tmp_path):
    command = f"{Path(sys.executable).with_name('sharpmax')} doctor --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


def test_doctor_tells_what_is_here():
    done = run("doctor", "--json")
    data = json.loads(done.stdout)
    found = {(check["extra"], check["package"]): check for check in data["packages"]}
    assert found["core", "numpy"]["fits"]
    assert found["torch", "torch"]["found"].startswith("2.")
    table = run("doctor")
    assert table.returncode == 0
    assert f"sharpmax {sharpmax.__version__}" in table.stdout
