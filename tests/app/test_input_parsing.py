"""Numbers in all common notations; anything else is explained in one sentence."""

from __future__ import annotations

import pytest

from sharpmax import UserError
from sharpmax.app.input_parsing import parse_curve, parse_logits, parse_selection


@pytest.mark.parametrize("text", ["1, 2.5, -3", "1 2.5 -3", "[1,\n2.5;-3]", " 1,, 2.5 ,-3e0 "])
def test_logits_in_common_notations(text):
    assert parse_logits(text).tolist() == [1.0, 2.5, -3.0]


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
def test_bad_logits_are_refused(text, message):
    with pytest.raises(UserError) as caught:
        parse_logits(text)
    assert message in str(caught.value)


def test_an_empty_selection_means_all():
    assert parse_selection("layers", "") is parse_selection("layers", "  ") is None
    assert parse_selection("layers", "0, 4-7") == [0, 4, 5, 6, 7]
    with pytest.raises(UserError, match="layers: expected whole numbers"):
        parse_selection("layers", "a")


def test_a_curve_is_clipped_to_its_field():
    assert parse_curve("0.5,2,-1").tolist() == [0.5, 1.0, 0.0]
    with pytest.raises(UserError, match="draw a curve first"):
        parse_curve("")
