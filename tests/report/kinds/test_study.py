"""What the study says follows its numbers, also while it is not finished."""

from __future__ import annotations

import pytest

from report.synthetic_study import study
from sharpmax import report
from sharpmax.report.blocks import Dots, Table
from sharpmax.results import Result


def test_sentences_say_who_is_helped_and_what_is_missing():
    text = " ".join(report.describe(study()).sentences)
    assert "The plain smollm2 scores 50.0 % on lookup and 50.0 % on RULER." in text
    assert "For smollm2, tune helps." in text
    assert "For gemma-3-270m, adaptive temperature does harm." in text
    assert "Not measured yet" not in text
    content = report.describe(study(finished=False))
    text = " ".join(content.sentences)
    assert "For gemma-3-270m, tune helps." not in text
    assert "Not measured yet for gemma-3-270m: 6 of 6 cells of RULER." in text
    assert text.endswith("Not measured at all yet: qwen.")
    assert content.verdict.sentence == (
        "4 pairs of model and condition: benefit in 1, harm in 2 and unfinished in 1."
    )
    assert content.verdict.command == "sharpmax reproduce study"


def test_the_forest_plot_has_a_row_per_model_and_condition(tmp_path):
    result = study(finished=False)
    forest, plain = [block for block in report.describe(result).blocks if isinstance(block, Dots)]
    assert [row.name for row in plain.rows] == ["lookup, 32"] * 2
    assert plain.rows[0].marks[0].value == pytest.approx(50)
    assert [row.heading for row in forest.rows] == ["smollm2", "", "gemma-3-270m", ""]
    tuned = forest.rows[0].marks[0]
    assert (tuned.value, tuned.low, tuned.high) == pytest.approx((30, 25, 35))
    assert forest.rows[2].marks[1] is None  # RULER is not finished
    assert report.save_picture(report.draw(result), tmp_path / "picture", overwrite=False)
    assert report.write([result], tmp_path / "page.html", names=["study"]).stat().st_size
    report.show(result)


def test_tables_have_tests_costs_and_all_cells():
    blocks = report.describe(study()).blocks
    tables = {block.title: block.rows for block in blocks if isinstance(block, Table)}
    tests = tables["Primary tests and verdicts"][0]
    assert tests[:2] == ["smollm2", "tune"]
    assert tests[2].text == "+30.0 (+25.0 to +35.0)"
    assert (tests[3].text, tests[4]) == ("0.004", "7.0 / 10.0")
    assert tests[-1] == "helps: lookup rises"
    cost = tables["What it costs"][1]
    assert cost[1:2] + cost[3:] == [
        "adaptive temperature",
        pytest.approx(0.3),
        pytest.approx(0.3),
        "all",
    ]
    assert len(tables["All cells"]) == 6


def test_a_damaged_study_is_refused():
    result = study()
    broken = result.model_copy(update={"measurements": {**result.measurements, "pools": 3}})
    with pytest.raises(Exception, match="is damaged: not what a result of kind 'study'"):
        report.describe(Result(**broken.model_dump()))
