"""What the comparison of tuning says follows its numbers, also while it is not finished."""

from __future__ import annotations

import pytest

from report.synthetic_comparison import RIGHT, comparison
from sharpmax import report
from sharpmax.report.blocks import Table
from sharpmax.results import Result


def said(result: Result) -> str:
    content = report.describe(result)
    verdict = content.verdict
    return " ".join([*content.sentences, verdict.sentence if verdict else ""])


def test_the_first_sentence_says_what_tuning_gains():
    text = said(comparison(*RIGHT))
    assert text.startswith(
        "Asked for one of 64 names, the plain model answers 16.0 % correctly and the tuned one "
        "88.0 % (mean of 3 seeds: 86.0 to 90.0 %). Of the same questions, 70.0 % with LoRA, rank 8 "
        "are answered correctly."
    )
    assert "does harm: fewer answers are right with adaptive temperature." in text
    assert "nats per token change by +0.40 % with tune, seed 1 and +2.00 % with LoRA" in text
    assert "gives the same bits as the plain one in 100\N{NO-BREAK SPACE}% of items" in text
    assert "rank correlation of their rates is 0.81 to 0.92" in text
    assert "tuning is clearly better in 8 of 8 cells and clearly worse in 0" in text


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (("paper",), "The plain model has not been measured yet."),
        (("plain",), "answers 16.0 % correctly. Tuning is not finished yet."),
        (("plain", "tune-1"), "and the tuned one 88.0 %."),
    ],
)
def test_an_unfinished_comparison_says_so(conditions, expected):
    result = comparison(*conditions, heads=False)
    assert expected in said(result)
    report.draw(result)


def test_tables_hold_intervals_and_costs(tmp_path):
    result = comparison(*RIGHT)
    tables = {
        block.title: block for block in report.describe(result).blocks if isinstance(block, Table)
    }
    right = tables["Correct answers, %"]
    assert [column.name for column in right.columns][-3:] == [
        "other formats, 32",
        "other formats, 64",
        "passkey, 1,024 tokens",
    ]
    tuned = next(row for row in right.rows if row[0] == "tune, seed 1")
    assert tuned[1].text == "88 (84\N{EN DASH}92)"
    costs = {row[0]: row[1:] for row in tables["What it costs"].rows}
    assert costs["LoRA, rank 8"][:3] == [270, 10.0, pytest.approx(2.0)]
    assert "tune, seed 3 (nothing gained)" in costs
    largest = tables["The heads with the largest rates"].rows[0]
    assert largest[1] == 8
    report.show(result)
    assert report.save_picture(report.draw(result), tmp_path / "picture", overwrite=False)


def test_a_damaged_result_is_refused():
    result = comparison("plain")
    broken = result.model_copy(update={"measurements": {}})
    with pytest.raises(Exception, match="is damaged: not what a result of kind 'tune-comparison'"):
        report.describe(broken)
