"""Progress of jobs side by side."""

from __future__ import annotations

from sharpmax.cli.progress import bars


def test_where_there_is_no_terminal_each_end_is_a_line(capsys):
    with bars() as progress:
        for place, share in ((0, 0.5), (1, 0.2), (1, 1.0), (1, 1.0), (0, 0.9), (0, 1.0)):
            progress("training", 2, place, share)
        progress("examining", 1, 0, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "training heads, 1 of 2 done",
        "training heads, 2 of 2 done",
        "examining heads, 1 of 1 done",
    ]


def test_on_a_terminal_there_is_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with bars() as progress:
        progress("training", 4, 0, 1.0)
        progress("training", 4, 1, 0.6)
    shown = capsys.readouterr().err
    assert "training heads, 1 of 4 done" in shown
    assert "40 %" in shown
