"""The table of the documentation says what the classes say."""

from __future__ import annotations

import re
from pathlib import Path

import sharpmax as sx

PAGE = Path(__file__).parents[2] / "docs" / "normalisers.md"
MARKS = {"1": "sums_to_one", "0": "sparse", "→": "order_dependent", "+": "shift_invariant"}


def test_the_table_has_every_method_and_its_traits():
    six_columns = r"^\| `([\w-]+)` \|[^|]*\|([^|]*)\|([^|]*)\|[^|]*\|[^|]*\|$"
    rows = re.findall(six_columns, PAGE.read_text("utf-8"), re.M)
    assert [name for name, *_ in rows] == list(sx.NORMALISERS)
    for name, marks, source in rows:
        normaliser = sx.NORMALISERS[name]
        for mark, trait in MARKS.items():
            assert (mark in marks.split()) == getattr(normaliser, trait), (name, trait)
        for number in re.findall(r"\d{4}\.\d{5}", source):
            assert number in type(normaliser).__doc__, (name, number)
