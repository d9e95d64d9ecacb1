"""The table of accuracies on the page of normalisers is what the leaderboard's result says."""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo

import sharpmax as sx
from sharpmax.report.renderers.markdown import replace_marked
from sharpmax.results import Result

ROOT = Path(__file__).parents[2]
PAGE = zoo.PAGE.read_text("utf-8")


@pytest.fixture(scope="module")
def board():
    return Result.load(ROOT / "results" / "leaderboard.json")


def test_the_committed_table_is_what_is_made(board):
    assert "<!-- zoo begin -->" in PAGE
    assert replace_marked(PAGE, zoo.MARK, zoo.table(board)) == PAGE, "run make zoo"


def test_every_normaliser_has_a_row_and_a_number_or_none(board):
    rows = zoo.table(board).splitlines()[2:]
    names = [row.split("|")[1].strip(" `") for row in rows]
    assert names == list(sx.NORMALISERS)
    for row in rows:
        for cell in row.split("|")[2:-1]:
            assert cell.strip() in (zoo.NOTHING, zoo.NOT_YET) or 0 <= float(cell) <= 100
    (selective,) = (row for row in rows if "`selective`" in row)
    assert selective.count("—") == len(zoo.COLUMNS)  # its logits need all queries


def test_a_method_that_was_not_measured_is_told_from_one_that_cannot_take_part(board):
    copy = board.model_copy(deep=True)
    rows = [row for row in copy.measurements["rows"] if row["method"] != "hard"]
    copy.measurements["rows"] = rows
    lines = {line.split("|")[1].strip(" `"): line for line in zoo.table(copy).splitlines()[2:]}
    assert lines["hard"].count("not yet") == len(zoo.COLUMNS)
    assert "not yet" not in lines["selective"]


def test_a_changed_result_changes_its_number(board):
    copy = board.model_copy(deep=True)
    place = copy.measurements["sizes"].index(1024)
    for row in copy.measurements["rows"]:
        if (row["track"], row["task"], row["method"]) == ("trained", "max", "hard"):
            row["mean"][place] = 0.123
    before, after = (zoo.table(one).splitlines() for one in (board, copy))
    (changed,) = (new for old, new in zip(before, after, strict=True) if old != new)
    assert changed.startswith("| `hard` |")
    assert " 12.3 " in changed
