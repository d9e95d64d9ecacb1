"""The question that the explorer opens with, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import sharpmax as sx
from report.pages import Page
from sharpmax.app.model.example import describe_example, example_pair, load_example, render_example
from sharpmax.app.model.generation import GenerationRequest, generate_pair
from sharpmax.hf import load
from sharpmax.report.numbers import percent
from sharpmax.results import Result, schemas

EVALUATION = Path(__file__).parents[3] / "results" / "smollm2" / "evaluate_lookup.json"


def test_plain_attention_is_wrong_and_the_calibration_right():
    page = str(render_example("tuned"))
    assert page.count('data-right="wrong"') == page.count('data-right="right"') == 1
    assert page.index('data-right="wrong"') < page.index('data-right="right"')
    assert str(render_example("paper")).count('data-right="wrong"') == 2


def test_the_shares_are_those_of_the_published_evaluation():
    rates = load_example()["evaluated"]
    evaluation = schemas.Evaluation.of(Result.load(EVALUATION))
    assert rates["questions"] == evaluation.prompts * evaluation.questions
    for condition in ("plain", "tuned"):
        (row,) = [row for row in evaluation.rows_of(condition) if row.length == rates["names"]]
        assert rates[condition] == row.accuracy.mean
        assert percent(row.accuracy.mean, 0) in describe_example("tuned")


def test_the_code_is_marked_and_a_head_looks_at_it():
    pair = example_pair("tuned")
    plain, tuned = pair.tokens.data["inputs"]
    needle = plain["needle"]
    assert "".join(plain["pieces"][token] for token in needle).strip() == pair.answer.strip()
    row, column = pair.tokens.data["first"]
    weights = [
        dict(zip(*[iter(one["heads"][row][column])] * 2, strict=True)) for one in (plain, tuned)
    ]
    before, after = (sum(one.get(token, 0) for token in needle) for one in weights)
    assert after > 2 * before


def test_it_is_whole_and_harmless():
    page = Page(str(render_example("tuned")))
    assert "What is the code of" in page.text
    assert not [
        value for _, one in page.elements for name, value in one.items() if name[:2] == "on"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("condition", "policy"), [("tuned", "tuned"), ("paper", sx.PAPER)])
def test_the_model_writes_what_is_stored(condition, policy):
    """`tools/explorer_example.py` writes the file anew."""
    example = load_example()
    request = GenerationRequest(example["prompt"], policy, None, None, example["max_tokens"], False)
    pair, stored = (
        generate_pair(load("smollm2"), request, lambda share: None),
        example_pair(condition),
    )
    assert (pair.plain, pair.sharpened) == (stored.plain, stored.sharpened)
    assert pair.tokens.data["first"] == tuple(stored.tokens.data["first"])
