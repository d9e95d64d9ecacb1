"""The page says what was measured: each number of its tables is that of a published result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sharpmax.experiments.leaderboard.entries import METHODS, NOT_YET, TRACKS
from sharpmax.report.numbers import share
from sharpmax.results import Result

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "leaderboard.md").read_text("utf-8")
ROW = re.compile(r"^\| `([\w-]+)` \| (.+) \|$", re.M)
SHOWN = (256, 1_024, 4_096, 16_384)


def tables(section):
    """The rows of the table of one section, by method."""
    body = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {name: cells.split(" | ") for name, cells in ROW.findall(body)}


@pytest.fixture(scope="module")
def published():
    return Result.load(ROOT / "results" / "leaderboard.json")


def test_it_was_made_by_the_command_with_everything_in_it(published):
    assert published.provenance.command.startswith("sharpmax leaderboard")
    assert "+changes" not in published.provenance.commit
    rows = published.measurements["rows"]
    methods = {row["method"] for row in rows}
    assert len(rows) == len(TRACKS) * 3 * len(methods)
    assert methods <= set(METHODS)
    assert len(published.seeds) >= 3
    assert published.measurements["sizes"][0] == 16
    assert published.measurements["sizes"][-1] == 16_384
    for row in rows:
        assert ("reason" in row) or len(row["accuracy"]) == len(published.seeds)


def test_what_was_not_measured_yet_is_named_and_nothing_else(published):
    """A method of which the result has no row, or rows that say so, is listed with the command."""
    rows = published.measurements["rows"]
    unfinished = {row["method"] for row in rows if row.get("reason") == NOT_YET}
    unfinished |= set(METHODS) - {row["method"] for row in rows}
    section = PAGE.split("\n## Not measured yet\n")
    assert len(section) == 1 + bool(unfinished)
    if unfinished:
        body = section[1].split("\n## ")[0]
        assert set(re.findall(r"^\| `([\w-]+)` \|", body, re.M)) == unfinished
        assert "sharpmax leaderboard --extend results/leaderboard.json --overwrite" in body


@pytest.mark.parametrize("track", TRACKS)
def test_tables_are_the_result(track, published):
    sizes = published.measurements["sizes"]
    rows = {
        (row["task"], row["method"]): row
        for row in published.measurements["rows"]
        if row["track"] == track and "reason" not in row
    }
    shown = tables(track)
    ranked = [name for task, name in rows if task == "max"]
    assert list(shown) == sorted(ranked, key=lambda name: -rows["max", name]["mean"][-1])
    for name, cells in shown.items():
        asked = [("max", size) for size in SHOWN] + [("second-max", 1_024)]
        asked += [("most-frequent", 16_384)] if ("most-frequent", name) in rows else []
        for cell, (task, size) in zip(cells, asked, strict=False):
            row, place = rows[task, name], sizes.index(size)
            assert cell == share(row["mean"][place], row["std"][place]), (name, task)
        if TRACKS[track].own:
            assert cells[-1] == f"{published.measurements['cost']['ratio'][name]:.2f}"


def test_the_longer_training_is_the_result():
    longer = Result.load(ROOT / "results" / "long" / "leaderboard.json")
    assert longer.provenance.command in PAGE
    rows = {(row["track"], row["method"]): row for row in longer.measurements["rows"]}
    for name, cells in tables("With three times the steps").items():
        said = iter(cells)
        for track in ("augmented", "augmented-drop-in"):
            row = rows[track, name]
            for size in (1_024, 4_096, 16_384):
                place = longer.measurements["sizes"].index(size)
                assert next(said) == share(row["mean"][place], row["std"][place])


def test_larger_sets_are_the_result():
    longest = Result.load(ROOT / "results" / "longest" / "leaderboard.json")
    assert longest.provenance.command.removesuffix(" --processes 1") in PAGE
    rows = {row["method"]: row for row in longest.measurements["rows"]}
    shown = tables("On larger sets")
    assert set(shown) == set(rows)
    for name, cells in shown.items():
        row = rows[name]
        assert cells == [share(*pair) for pair in zip(row["mean"], row["std"], strict=True)]


def test_whoever_is_absent_is_named_with_the_reason(published):
    for row in published.measurements["rows"]:
        assert "reason" not in row or f"`{row['method']}`" in PAGE
