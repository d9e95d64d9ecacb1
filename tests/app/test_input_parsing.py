"""Numbers in all common notations; anything else is explained in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax import UserError
from sharpmax.app.input_parsing import (
    check_choice,
    check_choices,
    check_integer,
    check_number,
    check_text,
    parse_curve,
    parse_logits,
    parse_selection,
)

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text())
)


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
        ("0, 1e7", "logit 2 is '1e7': expected a number from -1,000,000 to 1,000,000"),
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


@pytest.mark.parametrize("text", ["0-99999", "0-600 0-600", "1 " * 1_000 + "1", "0-99999," * 200])
def test_a_selection_is_small(text):
    with pytest.raises(UserError, match=r"more than 1,000 numbers|shorten it to 2,000"):
        parse_selection("layers", text)


def test_a_number_in_a_selection_has_a_limit():
    assert parse_selection("lengths", "1-3", most=3, largest=3) == [1, 2, 3]
    with pytest.raises(UserError, match="lengths: 4 is too large: give numbers up to 3"):
        parse_selection("lengths", "1-4", most=4, largest=3)


@given(ANYTHING)
def test_a_value_is_checked_or_refused_in_one_line(value):
    """Whatever a browser sends, the result has the type and range asked for."""
    checks = {
        lambda: check_number("x", value, 0.5, 20): lambda x: (
            isinstance(x, float) and 0.5 <= x <= 20
        ),
        lambda: check_integer("x", value, 1, 9): lambda x: type(x) is int and 1 <= x <= 9,
        lambda: check_text("x", value, 9): lambda x: isinstance(x, str) and len(x) <= 9,
        lambda: check_choice("x", value, (1, "a")): lambda x: x in (1, "a"),
        lambda: check_choices("x", value, ("a", "b")): lambda x: set(x) <= {"a", "b"},
    }
    for check, holds in checks.items():
        problem = ""
        try:
            assert holds(check())
        except UserError as error:
            problem = str(error)
        assert "\n" not in problem
        assert len(problem) < 120


def test_choices_are_compared_with_their_type():
    assert check_choice("x", 1, (0, 1)) == 1
    for value in (True, 1.0, "1", [1]):
        with pytest.raises(UserError, match="expected 0, 1"):
            check_choice("x", value, (0, 1))


def test_chosen_ones_are_named_once_and_in_order():
    assert check_choices("x", ["b", "a", "b"], ("a", "b", "c")) == ["a", "b"]


def test_half_a_character_is_refused():
    with pytest.raises(UserError, match="half of a surrogate pair"):
        check_text("your text", "\ud800")


def test_a_curve_is_clipped_to_its_field():
    assert parse_curve("0.5,2,-1").tolist() == [0.5, 1.0, 0.0]
    with pytest.raises(UserError, match="draw a curve first"):
        parse_curve("")
