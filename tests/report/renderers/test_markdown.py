"""Markdown tables, and pages in which programs replace them."""

from __future__ import annotations

from sharpmax.report.blocks import Cell, Column, Table
from sharpmax.report.renderers.markdown import replace_marked, table

BEGIN, END = "<!-- claims begin -->", "<!-- claims end -->"


def test_a_table_has_a_heading_a_rule_and_its_rows():
    columns = [Column("name"), Column("share", 1, short="")]
    block = Table("Title", columns, [["a|b", 1.25], ["c", Cell(2.0, "2.0 ± 0.1")], ["d", None]])
    assert table(block).splitlines() == [
        "| name | share |",
        "|---|---|",
        "| a\\|b | 1.2 |",
        "| c | 2.0 ± 0.1 |",
        "| d | \N{EN DASH} |",
    ]


def test_a_page_without_marks_is_left_alone():
    assert replace_marked("# A page\n", "claims", "table") == "# A page\n"
    assert replace_marked(f"{BEGIN}\nold\n", "claims", "table") == f"{BEGIN}\nold\n"
    assert replace_marked(f"a {BEGIN} old {END} b", "other", "x") == f"a {BEGIN} old {END} b"


def test_what_is_between_the_marks_is_replaced():
    page = f"a {BEGIN} old {END} b"
    new = replace_marked(page, "claims", "table")
    assert new == f"a {BEGIN}\n\ntable\n\n{END} b"
    assert replace_marked(new, "claims", "table") == new
