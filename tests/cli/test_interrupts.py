"""Ctrl-C ends a command and all its processes, however often it is pressed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMANDS = {
    "table1": ("reproduce", "table1", "--processes", "1"),
    "leaderboard": ("leaderboard", "--method", "softmax", "--processes", "1"),
}


def processes_of(session: int) -> set[int]:
    """The processes of a session that have not ended."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _, _, its_session = (
                    (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                )
            except OSError:
                continue  # ended meanwhile
            if int(its_session) == session and state != "Z":
                found.add(int(folder.name))
    return found


def works(session: int) -> bool:
    """Whether a worker of the session has imported JAX, and so begins to train."""
    for process in processes_of(session) - {session}:
        try:
            if "spawn_main" in Path(f"/proc/{process}/cmdline").read_text():
                return "jax" in Path(f"/proc/{process}/maps").read_text()
        except OSError:
            continue
    return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
@pytest.mark.parametrize("pause", [0.05, 0.5])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_two_interrupts(tmp_path, command, pause):
    words = [sys.executable, "-m", "sharpmax", *command, "--out", tmp_path / "out"]
    with (tmp_path / "errors").open("w") as errors:
        parent = subprocess.Popen(words, stderr=errors, start_new_session=True)
    try:
        for _ in range(1200):
            if works(parent.pid):
                break
            assert parent.poll() is None, (tmp_path / "errors").read_text()
            time.sleep(0.05)
        os.killpg(parent.pid, signal.SIGINT)
        time.sleep(pause)
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait(timeout=60) == 130
        for _ in range(100):
            if not processes_of(parent.pid):
                break
            time.sleep(0.1)
        assert processes_of(parent.pid) == set()
        lines = (tmp_path / "errors").read_text().splitlines()
        assert lines[-1] == "sharpmax: stopped"
        assert "Traceback" not in "".join(lines)
    finally:
        for process in processes_of(parent.pid):
            os.kill(process, signal.SIGKILL)
        parent.wait()
