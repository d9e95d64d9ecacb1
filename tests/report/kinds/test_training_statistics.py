"""What the report of a training's attention says follows its numbers."""

from __future__ import annotations

import numpy as np
import pytest

from report.synthetic_training import training
from sharpmax import report
from sharpmax.report.blocks import Chart, Frames, Table
from sharpmax.report.kinds.training_statistics import COLUMNS, LISTED
from sharpmax.results import Result, Stopwatch


def blocks(result, kind):
    return {
        block.title: block for block in report.describe(result).blocks if isinstance(block, kind)
    }


def test_alarms_are_counted_and_listed_by_head():
    content = report.describe(training())
    assert content.verdict.status == "bad"
    assert content.verdict.sentence == "2 alarms."
    assert content.verdict.details == [
        "1 head had a logit above 100, first layer 1 head 0 at step 21.",
        "1 head collapsed to an entropy below 0.1 nats, first layer 0 head 2 at step 31.",
        "Lower the learning rate, or bound the logits with sharpmax.hf.QKClipCallback.",
    ]
    assert content.sentences == [
        "The mean entropy of the heads was 2.50 nats at step 1 and 1.47 nats at step 31.",
        "The largest logit of any head was 180.0.",
    ]
    rows = blocks(training(), Table)["Alarms"].rows
    assert rows == [
        [21, 1, 0, "largest logit above the limit", 120.0],
        [31, 0, 2, "entropy collapsed", 0.05],
    ]


def test_a_calm_training_says_so():
    content = report.describe(training(steps=2))
    assert content.verdict.status == "good"
    assert content.verdict.sentence == (
        "No head had a logit above 100, and no head's entropy collapsed below 0.1 nats."
    )
    assert "Alarms" not in blocks(training(steps=2), Table)


def test_the_maps_have_a_row_per_head_and_a_column_per_sample():
    result = training()
    maps = blocks(result, Frames)
    assert list(maps) == [
        "Entropy of every head",
        "Largest logit of every head",
        "Largest weight of every head",
        "Weight on the first token of every head",
        "Varentropy of every head",
    ]
    shown = maps["Largest logit of every head"]
    assert shown.rows == [f"layer {layer} head {head}" for layer in range(2) for head in range(3)]
    assert shown.columns == ["step 1", "step 11", "step 21", "step 31"]
    assert shown.frames[0][3] == [0.0, 60.0, 120.0, 180.0]
    assert shown.ends == (0.0, 180.0)
    curves = blocks(result, Chart)["Entropy by layer"]
    np.testing.assert_allclose(curves.lines[1].y, [2.5, 2.25, 2.0, 1.75])


def test_a_long_training_of_many_heads_is_thinned_out():
    result = training(steps=400, layers=20, heads=4, max_logit=0.5)
    content = report.describe(result)
    shown = blocks(result, Frames)["Entropy of every head"]
    assert len(shown.columns) == COLUMNS
    assert shown.columns[0] == "step 1"
    assert shown.columns[-1] == "step 3,991"
    table = blocks(result, Table)["Alarms"]
    assert len(table.rows) == LISTED
    assert table.text == f"The first {LISTED} of 81."
    assert content.verdict.sentence == "81 alarms."
    report.draw(result)


@pytest.mark.parametrize("missing", ["a head", "a sample"])
def test_what_was_not_measured_is_left_out(missing):
    result = training()
    arrays = {name: np.array(values) for name, values in result.arrays.items()}
    for values in arrays.values():
        values[(slice(None), 1, 2) if missing == "a head" else 1] = np.nan
    result = result.with_arrays(**arrays)
    page = report.render([result], names=["x.json"])
    assert "NaN" not in page
    assert " nan" not in page
    report.draw(result)


def test_the_benchmark_says_what_the_callback_costs():
    times = {
        name: {"ratio": ratio, "low": ratio, "high": ratio + 0.1, "milliseconds": 1000 * ratio}
        for name, ratio in (("plain", 1.0), ("sampled", 1.12), ("clipped", 1.2))
    }
    result = Result(
        kind="bench-training",
        config={
            "model": "small", "batch": 4, "tokens": 256, "every": 10, "rows": 32, "sequences": 4,
            "rounds": 15, "threads": 1,
        },
        seeds=(0,),
        measurements={
            "times": times,
            "callback": {"ratio": 0.012, "low": 0.011, "high": 0.022},
            "largest_difference": 1e-6,
        },
        provenance=Stopwatch().provenance(),
    )  # fmt: skip
    content = report.describe(result)
    assert content.verdict.status == "good"
    assert content.verdict.sentence == (
        "The statistics callback costs 1.2 % of the training (1.1 to 2.2)."
    )
    [table] = content.blocks
    assert [row[0] for row in table.rows] == ["plain", "with statistics", "with QK-clip"]
    assert table.rows[1][2].text == "1.12 (1.12 to 1.22)"
    assert "What attention statistics cost" in report.render([result], names=["x.json"])
