"""The question that the tab opens with, answered beforehand: no model is loaded to see it."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

from markupsafe import Markup

from sharpmax.app import views
from sharpmax.app.model.generation import TextPair, render_pair
from sharpmax.report.blocks import TokenView
from sharpmax.report.numbers import percent

TITLES = {"tuned": "the calibration", "paper": "the paper's polynomial in all heads"}


@lru_cache(maxsize=1)
def load_example() -> dict[str, Any]:
    """Load what `tools/explorer_example.py` wrote."""
    file = resources.files("sharpmax.app") / "assets" / "lookup_example.json"
    return dict(json.loads(file.read_text("utf-8")))


def example_pair(condition: str) -> TextPair:
    """Return what the model wrote, plain and with the calibration or the paper's polynomial."""
    example = load_example()
    one = example["conditions"][condition]
    tokens = TokenView(
        title="What a head looks at",
        inputs=[shown["name"] for shown in one["tokens"]["inputs"]],
        data=one["tokens"],
        text="The prompt as the model reads it. The stronger the colour, the more of the head's "
        "weight a token gets when the model is about to answer. The code that is asked for is "
        "underlined. Click a token to see which heads look at it.",
    )
    return TextPair(
        example["prompt"],
        one["plain"],
        one["sharpened"],
        one["first_difference"],
        (),
        tokens,
        example["answer"],
    )


def describe_example(condition: str) -> str:
    """Say what the example shows, and how often the same happens."""
    example = load_example()
    rates = example["evaluated"]
    if condition == "paper":
        return (
            "A caution: the paper's polynomial, which helps a trained head that finds a maximum, "
            "sharpens every head of this language model, and the model no longer writes a code."
        )
    return (
        f"The right answer is {example['answer'].strip()}. This question was chosen because it "
        f"shows the effect. Of {rates['questions']} such questions among {rates['names']} names, "
        f"plain attention answers {percent(rates['plain'], 0)} correctly and the calibration "
        f"{percent(rates['tuned'], 0)}."
    )


def render_example(condition: str) -> Markup:
    """Return the stored answers with their explanation."""
    example = load_example()
    source = f"Computed beforehand with {example['model']}. Press “Write both” to run it here."
    return Markup("{}{}{}").format(
        views.message(describe_example(condition)),
        render_pair(example_pair(condition), TITLES[condition]),
        views.message(source),
    )
