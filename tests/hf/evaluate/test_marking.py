"""Marks: what counts as right, and writing may end early only where nothing can change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax.hf.evaluate.marking import Marking

TEXTS = st.text("aB .\n\t\x0b", max_size=8)
ANSWERS = st.lists(
    st.text("aB .", min_size=1, max_size=4).filter(str.strip), min_size=1, max_size=3
)


def marking(match, *accepted):
    return Marking(accepted, match, 64)


@pytest.mark.parametrize(
    ("written", "right"),
    [
        (" Paris\nLondon", True),
        ("\n\n Paris.", True),
        ("Paris, France", False),
        ("paris", False),
        ("The city of Paris", False),
        (" Lutetia ", True),
        ("", False),
    ],
)
def test_exact_compares_the_first_line(written, right):
    assert marking("exact", "Paris", "Lutetia").mark(written) == (right,)


def test_contains_accepts_any_answer_and_all_marks_each():
    text = "It is either LUTETIA\nor London."
    assert marking("contains", "Paris", "Lutetia").mark(text) == (True,)
    assert marking("contains", "Paris", "Rome").mark(text) == (False,)
    assert marking("all", "Paris", "Lutetia", "london").mark(text) == (False, True, True)
    assert (marking("all", "a", "b").parts, marking("contains", "a", "b").parts) == (2, 1)


@given(st.sampled_from(["exact", "contains", "all"]), ANSWERS, TEXTS, TEXTS)
def test_what_is_settled_never_changes(match, accepted, written, more):
    marks = Marking(tuple(accepted), match, 64)
    if marks.is_settled(written):
        assert marks.mark(written + more) == marks.mark(written)


@given(ANSWERS, TEXTS)
def test_an_accepted_answer_is_never_given_up_while_it_is_written(accepted, more):
    marks = marking("exact", *accepted)
    for end in range(len(accepted[0])):
        assert not marks.is_settled(accepted[0][:end])
    assert marks.is_settled(accepted[0] + "\n" + more)
    assert marks.mark(accepted[0] + "\n" + more) == (True,)


def test_half_a_character_does_not_end_an_answer():
    marks = marking("exact", "Öl")
    assert not marks.is_settled("\N{REPLACEMENT CHARACTER}")
    assert marks.is_settled("Om")


@given(st.lists(st.text("aB \n\t1", min_size=1, max_size=3), min_size=1, max_size=3), TEXTS)
def test_all_is_the_score_of_ruler(accepted, written):
    """The formula of RULER's `string_match_all`, for one prediction."""
    common_utils = pytest.importorskip("lm_eval.tasks.ruler.common_utils")
    accepted = [answer for answer in accepted if answer.strip() == answer]
    if accepted:
        marks = marking("all", *accepted).mark(written)
        (text,) = common_utils.postprocess_pred([written])
        assert sum(marks) / len(marks) == common_utils.string_match_all([text], [accepted])
