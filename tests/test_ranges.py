"""Lists of whole numbers and ranges, as users type them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax import UserError
from sharpmax._ranges import (
    MAX_LENGTH,
    MAX_LENGTHS,
    MAX_RANGE,
    check_lengths,
    parse_lengths,
    parse_ranges,
)

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


def test_many_ranges_fill_no_memory():
    with pytest.raises(UserError, match=r"^--layers: more than 100,000 numbers"):
        parse_ranges("--layers", ",".join([f"1-{MAX_RANGE // 2}"] * 10_000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1-9999999999", "has more than 100,000 numbers"),
        ("9999999999", r"--lengths must be at most 10,000,000, got 9,999,999,999$"),
        (f"1-{MAX_LENGTHS + 1}", "--lengths: 1,001 lengths are too many, give up to 1,000"),
        ("8,0", "--lengths must be whole numbers from 1 up, got 0"),
    ],
)
def test_lengths_that_no_model_reads(text, message):
    with pytest.raises(UserError, match=message):
        parse_lengths("--lengths", text)


def test_lengths():
    assert parse_lengths("--lengths", f"8,{MAX_LENGTH}") == [8, MAX_LENGTH]
    check_lengths([np.int64(3), 4])
    for wrong in (True, 1.0, "1", None, 10**400):
        with pytest.raises(UserError, match=r"lengths must be (whole numbers|at most 10,000,000)"):
            check_lengths([wrong])
