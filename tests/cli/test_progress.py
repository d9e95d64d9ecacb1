"""Progress bars on a terminal, lines elsewhere."""

from __future__ import annotations

import pytest

from sharpmax.cli.progress import job_progress, loss_progress, progress_bar


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")


def test_without_a_terminal_each_finished_job_is_a_line(capsys):
    with job_progress() as progress:
        for job, share in ((0, 0.5), (1, 0.2), (1, 1.0), (1, 1.0), (0, 0.9), (0, 1.0)):
            progress("training", 2, job, share)
        progress("examining", 1, 0, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "training heads, 1 of 2 done",
        "training heads, 2 of 2 done",
        "examining heads, 1 of 1 done",
    ]


def test_on_a_terminal_there_is_a_bar(capsys, terminal):
    with job_progress("algorithms") as progress:
        progress("training", 4, 0, 1.0)
        progress("training", 4, 1, 0.6)
    shown = capsys.readouterr().err
    assert "training algorithms, 1 of 4 done" in shown
    assert "40 %" in shown


def test_one_bar(capsys, terminal):
    with progress_bar("scanning") as progress:
        progress(0.25)
    shown = capsys.readouterr().err
    assert "scanning" in shown
    assert "25 %" in shown


def test_without_a_terminal_the_loss_is_printed_now_and_then(capsys):
    with loss_progress("softmax, seed 0", 40) as progress:
        for step in range(1, 41):
            progress(step, 3.0 if step == 1 else 2.0)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20
    smoothed = 2 + 0.98  # one step after a loss of 3
    assert lines[0] == f"softmax, seed 0: step 2 of 40, loss {smoothed:.4f}"
