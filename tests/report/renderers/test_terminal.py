"""The terminal shows the tables and sentences of the report, in 80 columns."""

from __future__ import annotations

import pytest
from rich.console import Console

from report.published import ALL, EVIL, evil, first_of
from sharpmax import report
from sharpmax.report.blocks import Cell, Column, Content, Table, Verdict
from sharpmax.report.renderers import terminal

VERDICT = Verdict("good", "Do it.", command="sharpmax scan")


def printed(content: Content, width: int = 80) -> str:
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        for part in terminal.parts(content):
            console.print(part)
    return capture.get()


@pytest.mark.parametrize("kind", ALL)
def test_eighty_columns_show_every_sentence_and_no_cut_number(kind):
    content = report.describe(first_of(kind))
    text = printed(content)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for sentence in content.sentences:
        assert " ".join(sentence.split()) in flat
    assert "…" not in text.replace("λ², … ,", "")
    assert " ".join(content.verdict.sentence.split()) in flat


def test_a_table_has_its_numbers():
    columns = [
        Column("Name"),
        Column("Long heading", 1, short="Short"),
        Column("Left out", 0, short=""),
        Column("Whole", 0),
    ]
    rows = [["one", 1.25, 7, 1000], ["two", Cell(2.0, "2.0 ± 0.1"), 8, None]]
    table = Table("Title", columns, rows, "A note.")
    text = printed(Content("test", "Result", ["fact"], ["It is so."], [table], VERDICT))
    assert "Long heading" not in text
    assert "Left out" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["Name", "Short", "Whole"] in lines
    assert ["one", "1.2", "1,000"] in lines
    assert ["two", "2.0", "±", "0.1", "\N{EN DASH}"] in lines
    assert lines.index(["Title"]) < lines.index(["A", "note."]) < lines.index(["It", "is", "so."])
    assert text.rstrip().endswith("Do it.\nNext: sharpmax scan")


def test_tables_for_the_page_only_are_not_printed():
    table = Table("Every number", [Column("A", 0), Column("B", 0)], [[1, 2]], terminal=False)
    assert "Every number" not in printed(Content("test", "Result", [], ["So."], [table], VERDICT))


def test_markup_in_a_result_is_shown_and_not_obeyed(capsys):
    table = Table("T", [Column("A"), Column("B", 0)], [["[red]text[/red]", 1]])
    content = Content("test", "[bold]title[/bold]", [":smile:"], ["[link=x]y"], [table], VERDICT)
    terminal.show(content)
    out = capsys.readouterr().out
    for text in ("[red]text[/red]", "[bold]title[/bold]", ":smile:", "[link=x]y"):
        assert text in out
    report.show(evil("evaluate"))
    assert EVIL[:20] in capsys.readouterr().out
