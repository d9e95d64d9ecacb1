"""Numbers that several pages quote are those of one committed result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sharpmax.hf import shipped_calibrations
from sharpmax.results import Result, schemas

ROOT = Path(__file__).parents[2]
LOOKUP = schemas.Evaluation.of(Result.load(ROOT / "results" / "smollm2" / "evaluate_lookup.json"))
COST = shipped_calibrations()["smollm2"].text_cost


def right(condition: str, names: int) -> str:
    """Return the percentage of right answers as sentences have it."""
    (row,) = [row for row in LOOKUP.rows_of(condition) if row.length == names]
    return f"{100 * row.accuracy.mean:.0f}"


QUESTIONS = str(LOOKUP.prompts * LOOKUP.questions)
FIRST = (
    r"finds the code of one of (\d+) names in (\d+) % instead of (\d+) % of (\d+) questions",
    ("64", right("tuned", 64), right("plain", 64), QUESTIONS),
)
PICTURE = (
    r"in lists of (\d+) to (\d+) names\. As it comes it gets (\d+) to (\d+) percent right, "
    r"tuned (\d+) to (\d+)\]",
    (
        *("16", "128", right("plain", 16), right("plain", 128)),
        *(right("tuned", 16), right("tuned", 64)),
    ),
)
SPOKEN = {
    "README.md": [FIRST, PICTURE],
    "docs/index.md": [FIRST, PICTURE],
    "docs/quick_start.md": [
        (
            r"Over \[(\d+) questions\]\(tune\.md#results\) among (\d+) names, (\d+) % are answered "
            r"right plain and (\d+) % with",
            (QUESTIONS, "32", right("plain", 32), right("tuned", 32)),
        )
    ],
    "docs/evaluate.md": [
        (
            r"answers (\d+) instead of (\d+) % of lookups among (\d+) names, and (\d+) instead of "
            r"(\d+) % among (\d+)",
            (
                *(right("tuned", 32), right("plain", 32), "32"),
                *(right("tuned", 64), right("plain", 64), "64"),
            ),
        ),
        (r"use (\d+) per length", (QUESTIONS,)),
    ],
}


@pytest.mark.parametrize("page", SPOKEN)
def test_the_shares_of_right_answers(page):
    text = " ".join((ROOT / page).read_text("utf-8").split())
    for pattern, numbers in SPOKEN[page]:
        found = re.search(pattern, text)
        assert found, pattern
        assert found.groups() == numbers


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("README.md", r"ordinary text costs ([\d.]+) % more nats"),
        ("docs/index.md", r"ordinary text costs ([\d.]+) % more nats"),
        ("docs/plain_words.md", r"Longer text is predicted ([\d.]+) % worse"),
    ],
)
def test_the_cost_on_ordinary_text(page, pattern):
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert re.search(pattern, text)[1] == f"{100 * COST.relative:.1f}"
