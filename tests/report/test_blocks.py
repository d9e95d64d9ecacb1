"""Tables say which direction is better."""

from __future__ import annotations

import pytest

from sharpmax.report.blocks import Column, Table


@pytest.mark.parametrize(
    ("directions", "said"),
    [
        ([None, None], "Text."),
        (["higher", "higher"], "Text. Higher is better."),
        (["higher", None, "lower"], "Text. Higher is better in “a”. Lower is better in “c”."),
        (["higher", None, "higher"], "Text. Higher is better in “a” and “c”."),
        ([None, "lower", "lower", "lower"], "Text. Lower is better in “b” to “d”."),
        (["lower", None, "lower", "lower"], "Text. Lower is better in “a”, “c” and “d”."),
    ],
)
def test_the_caption_names_the_columns(directions, said):
    columns = [Column(name, 1, way) for name, way in zip("abcd", directions, strict=False)]
    table = Table("Title", [Column("Name"), *columns], [], "Text.")
    assert table.caption == said
