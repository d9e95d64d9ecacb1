"""What the report of trainings with normalisers says follows their numbers."""

from __future__ import annotations

import pytest

from report.synthetic_training import RIGHT, comparison
from sharpmax import report
from sharpmax.report.blocks import Chart, Group, Table
from sharpmax.report.kinds.train_normalisers import LOOKS


def said(result):
    content = report.describe(result)
    return " ".join([content.verdict.sentence, *content.verdict.details, *content.sentences])


def test_the_sizes_of_training_and_the_longest_are_compared():
    text = said(comparison(*RIGHT))
    assert "at 16 items: softmax 89.5 %" in text.replace("\xa0", " ")
    assert "At 64 items: softmax 39.5 %" in text.replace("\xa0", " ")


def test_the_verdict_names_the_best_with_its_spread_and_what_tune_found():
    result = comparison(*RIGHT)
    verdict = report.describe(result).verdict
    assert verdict.sentence == (
        "On texts of 64 items, 4 times the largest of training, scalable softmax has the most "
        "right answers: 79.5 ± 0.7 %."
    )
    assert verdict.details == [
        "Softmax has 39.5 ± 0.7 %.",
        "There the sharpest head has a largest weight of 0.20 with softmax, and of 0.40 with "
        "scalable softmax.",
    ]
    tuned = [row for row in result.measurements["rows"] if row["condition"] == "softmax-tuned"]
    tuned[1]["facts"] = {"nothing_to_gain": "no head"}
    assert report.describe(result).verdict.details[-1] == (
        "softmax, then tune on 32 to 128: tune found nothing to gain in 1 of 2 models, which is "
        "then the softmax model."
    )


def test_charts_have_a_line_per_condition():
    content = report.describe(comparison(*RIGHT))
    [group] = [block for block in content.blocks if isinstance(block, Group)]
    accuracy, nats, sharpness = group.charts
    names = [LOOKS[name].name for name in RIGHT]
    assert [line.name for line in accuracy.lines] == names
    assert [line.name for line in nats.lines] == names
    assert accuracy.lines[2].y == pytest.approx([99.5, 94.5, 79.5])
    assert nats.lines[0].y == pytest.approx([0.0, 0.1, 0.6])
    # What tune adds acts after what was recorded.
    assert [line.name for line in sharpness.lines] == [names[0], *names[2:]]
    [entropies] = [block for block in content.blocks if isinstance(block, Chart)]
    assert entropies.title == "Entropy at the questions while training"


def test_the_table_has_the_sizes_from_training_on():
    result = comparison(*RIGHT)
    tables = [block for block in report.describe(result).blocks if isinstance(block, Table)]
    longest, right, _ = tables
    assert [column.name for column in longest.columns] == [
        "Condition",
        "16 items, %",
        "64 items, %",
        "nats, 64",
        "largest weight, 64",
    ]
    assert longest.rows[2][3:] == [pytest.approx(0.2), pytest.approx(0.4)]
    assert longest.rows[1][-1] is None  # tune acts after what was recorded
    assert [column.name for column in right.columns] == ["Condition", "16 items, %", "64 items, %"]
    assert right.rows[2][2].text.replace("\xa0", " ") == "79.5 ± 0.7"
    assert right.text.endswith("over 2 seeds.")
    one = report.describe(comparison(*RIGHT, seeds=1))
    [_, right, _] = [block for block in one.blocks if isinstance(block, Table)]
    assert right.text == "Right answers in %, one seed."


@pytest.mark.parametrize("conditions", [("softmax",), ("scalable-softmax", "entmax"), ()])
def test_some_conditions_are_described_too(conditions):
    result = comparison(*conditions, seeds=1)
    content = report.describe(result)
    if not conditions:
        assert content.verdict.sentence == "No condition is finished yet."
    report.render([result], names=["x.json"])
