"""What is typed: numbers in any usual writing, and a sentence for all else."""

from __future__ import annotations

import pytest

from sharpmax import UserError
from sharpmax.app import typed


@pytest.mark.parametrize("text", ["1, 2.5, -3", "1 2.5 -3", "[1,\n2.5;-3]", " 1,, 2.5 ,-3e0 "])
def test_logits_in_any_usual_writing(text):
    assert typed.logits(text).tolist() == [1.0, 2.5, -3.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "type at least one logit"),
        (" , ", "type at least one logit"),
        ("1, two", "logit 2 is 'two': expected numbers"),
        ("1, nan", "logit 2 is 'nan': expected a finite number"),
        ("inf", "logit 1 is 'inf': expected a finite number"),
        ("<script>alert(1)</script>", "logit 1 is '<script>alert(1)</s…': expected numbers"),
        ("0 " * 16_385, "16,385 logits are too many"),
    ],
)
def test_what_is_no_row_is_refused(text, message):
    with pytest.raises(UserError) as caught:
        typed.logits(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "numbers"), [("", None), ("  ", None), ("0, 4-7", [0, 4, 5, 6, 7]), ("8 16", [8, 16])]
)
def test_whole_numbers(text, numbers):
    assert typed.whole_numbers("layers", text) == numbers


@pytest.mark.parametrize("text", ["-1", "1.5", "a", "7-4", "0-999999", "1-2-3"])
def test_what_are_no_whole_numbers_is_refused_by_name(text):
    with pytest.raises(UserError, match="layers: "):
        typed.whole_numbers("layers", text)


def test_a_curve_stays_in_its_field():
    assert typed.curve("0.5,2,-1").tolist() == [0.5, 1.0, 0.0]
    with pytest.raises(UserError, match="draw a curve first"):
        typed.curve("")
