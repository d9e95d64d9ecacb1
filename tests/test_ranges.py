"""Lists of whole numbers and ranges, as users type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax import UserError
from sharpmax._ranges import MAX_RANGE, parse_ranges

NUMBERS = st.integers(0, 10**6)
SEPARATORS = st.sampled_from([",", ", ", " ", ";", " ,\n"])


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 20)), min_size=1), SEPARATORS, st.booleans())
def test_numbers_and_ranges_in_the_order_given(ranges, separator, padded):
    parts = [f"{start}-{start + more}" if more else str(start) for start, more in ranges]
    text = separator.join(parts)
    expected = [start + i for start, more in ranges for i in range(more + 1)]
    assert parse_ranges("--layers", f" {text}, " if padded else text) == expected


@pytest.mark.parametrize(
    "text", ["", " , ", "1-", "-1", "a-b", "1.5", "1-2-3", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 13]
)
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(UserError, match=r"^--layers: expected whole numbers such as 0,4-7, got "):
        parse_ranges("--layers", text)


def test_an_error_repeats_a_part_of_the_input():
    with pytest.raises(UserError) as caught:
        parse_ranges("lengths", "4, <script>alert(1)</script>")
    assert str(caught.value).endswith("got '<script>alert(1)</s…'")


def test_invalid_ranges():
    with pytest.raises(UserError, match=r"^heads: invalid range '7-4': the start is larger than"):
        parse_ranges("heads", "0,7-4")
    assert len(parse_ranges("heads", f"1-{MAX_RANGE}")) == MAX_RANGE
    with pytest.raises(UserError, match="has more than 100,000 numbers"):
        parse_ranges("heads", f"0-{MAX_RANGE}")
