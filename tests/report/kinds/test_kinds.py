"""Every kind of result is described, in sentences that say what the numbers say."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest

from report.published import ALL, UNPUBLISHED, everything, first_of
from report.synthetic import figure8
from sharpmax import UserError, report
from sharpmax.report.blocks import Chart, Content, Group, Table
from sharpmax.report.kinds import KINDS, certify
from sharpmax.report.palette import COLOURS, name
from sharpmax.results import Calibration, Result


def changed(result: Result, **measurements: object) -> Result:
    other = result.model_copy(update={"measurements": result.measurements | measurements})
    return other.with_arrays(**result.arrays)


def text_of(result: Result | Calibration) -> str:
    content = report.describe(result)
    verdict = content.verdict
    parts = [*content.sentences, *([verdict.sentence, *verdict.details] if verdict else [])]
    return " ".join(parts).replace("\xa0", " ")


def charts(content: Content) -> list[Chart]:
    found = [block for block in content.blocks if isinstance(block, Chart)]
    return found + [
        chart for block in content.blocks if isinstance(block, Group) for chart in block.charts
    ]


def table(result: Result, title: str) -> Table:
    blocks = report.describe(result).blocks
    return next(block for block in blocks if isinstance(block, Table) and block.title == title)


def test_every_kind_is_published():
    assert {result.kind for result in everything().values()} == set(ALL)


@pytest.mark.parametrize("file", sorted(everything()))
def test_a_result_is_described_whole(file):
    content = report.describe(everything()[file])
    assert content.title
    assert content.what
    assert content.sentences
    text = " ".join([*content.sentences, *content.facts])
    assert not re.search(r"\b(nan|None|inf)\b", text)
    for chart in charts(content):
        assert chart.x.title
        assert chart.y.title
        assert chart.lines, chart.title
        for line in chart.coloured():
            assert line.colour in COLOURS
            assert len(line.x) == len(line.y) > 0
    for block in content.blocks:
        if isinstance(block, Table):
            assert block.rows, block.title
            for row in block.rows:
                assert len(block.cells(row)) == len(block.columns)
            short = [column.short for column in block.columns if column.short != ""]
            assert len(short) >= 2, block.title


@pytest.mark.parametrize("kind", sorted(set(KINDS) - UNPUBLISHED))
def test_a_result_that_is_not_of_its_kind_is_refused(kind):
    empty = first_of(kind).model_copy(update={"measurements": {}, "config": {}})
    with pytest.raises(
        UserError,
        match=f"^file.json is damaged: not what a result of kind '{kind}' holds .*run its",
    ):
        report.describe(empty, "file.json")


def test_an_unknown_kind_is_refused():
    with pytest.raises(
        UserError, match=r"^two: no report for results of kind 'growth': expected ev"
    ):
        report.describe(first_of("figure1").model_copy(update={"kind": "growth"}), "two")


def test_a_certificate_by_its_numbers():
    result = first_of("certify")
    bound, measured = result.arrays["spread_bound"], result.arrays["measured_spread"]
    text = text_of(result)
    assert f"by {bound.min():,.0f} to {bound.max():,.0f}, the median head's by" in text
    assert f"{np.median(bound):,.0f}." in text
    assert f"measured differences are {measured.min():.1f} to {measured.max():.1f}." in text
    ratio = bound / measured
    assert f"bound is {ratio.min():.0f} to {ratio.max():.0f} times as large" in text
    assert "Within the context of 8,192 tokens that is so for none of them" in text
    assert report.describe(result).verdict.status == "neutral"


def test_tokens_of_a_certificate_are_those_of_the_result():
    result = first_of("certify")
    for layer, bound in zip(
        result.measurements["layers"], result.arrays["spread_bound"], strict=True
    ):
        for share, expected in layer["log10_items"].items():
            found = certify.log10_tokens(bound, float(share)).max()
            assert found == pytest.approx(expected, abs=1e-3)


def test_heads_that_must_disperse_within_the_context_are_counted():
    result = first_of("certify")
    bound = result.arrays["spread_bound"].copy()
    bound[0, :3] = 2.0
    other = result.with_arrays(spread_bound=bound)
    assert "that is so for 3 of them" in text_of(other)
    assert "3 of 270 heads must be below 10 % at the model's full context" in text_of(other)
    assert report.describe(other).verdict.status == "bad"


def test_an_evaluation_by_its_numbers():
    result = first_of("evaluate")
    text = text_of(result)
    assert "As it is, the model answers 31.7 % correctly at 16 names and 16.4 % at 64." in text
    assert "“calibration-answers” helps, most at 32 names: 22.3 → 57.7 % correct." in text
    assert "“adaptive temperature” does harm, most at 16 names: 31.7 → 5.9 % correct." in text
    assert "“log n / log 128” helps at some lengths and does harm at others." in text
    none = "calibration-entropy and constant factor 1.2 in layers 20\N{EN DASH}29"
    assert f"No measurable effect for {none} (80 %" in text
    detectable = max(
        row["compared"]["detectable"]
        for row in result.measurements["rows"]
        if row["arm"] in ("calibration-entropy", "constant:1.2@20-29")
    )
    assert f"to detect a change of {100 * detectable:.1f} points" in text
    assert "use calibration-answers, which gains most" in text
    assert report.describe(result).verdict.status == "good"


def test_an_evaluation_in_which_nothing_helps():
    result = first_of("evaluate")
    rows = copy.deepcopy(result.measurements["rows"])
    for row in rows:
        if "compared" in row:
            row["compared"]["p_adjusted"] = 1.0
    text = text_of(changed(result, rows=rows))
    assert "Leave the model as it is" in text
    assert "helps," not in text
    assert report.describe(changed(result, rows=rows)).verdict.status == "neutral"


def test_an_evaluation_in_which_everything_harms():
    result = first_of("evaluate")
    rows = copy.deepcopy(result.measurements["rows"])
    for row in rows:
        if "compared" in row:
            row["compared"] |= {"p_adjusted": 1e-6, "difference": -0.1}
    assert report.describe(changed(result, rows=rows)).verdict.status == "bad"
    assert "does harm" in text_of(changed(result, rows=rows))


def test_table1_by_its_numbers():
    result = first_of("table1")
    mean, sizes = result.measurements["mean"], result.measurements["sizes"]
    gains = np.subtract(mean["adaptive"], mean["baseline"])
    most = int(gains.argmax())
    text = text_of(result)
    assert f"gains most at {sizes[most]:,} items: {100 * gains[most]:+.1f} points" in text
    lost = result.measurements["attribution"]["baseline"]
    assert (
        f"Softmax loses {100 * lost['dispersion'][-1]:.1f} % of the sets of 16,384 items to "
        f"dispersion and {100 * lost['ranking'][-1]:.1f} % to ranking" in text
    )
    line = report.describe(result).blocks[0].lines[0]
    std = result.measurements["std"]["baseline"]
    np.testing.assert_allclose(line.y, 100 * np.asarray(mean["baseline"]))
    np.testing.assert_allclose(line.low, 100 * np.subtract(mean["baseline"], std))
    np.testing.assert_allclose(line.high, 100 * np.add(mean["baseline"], std))
    rows = table(result, "Accuracy by size").rows
    assert [row[0] for row in rows] == sizes
    assert [row[1].value for row in rows] == mean["baseline"]
    assert [row[3].value for row in rows] == pytest.approx(gains.tolist())


def test_one_seed_has_no_standard_deviation():
    result = first_of("table1")
    single = changed(result, std=dict.fromkeys(result.measurements["std"]))
    lines = report.describe(single).blocks[0].lines
    assert lines[0].low is None
    assert "±" not in table(single, "Accuracy by size").rows[0][1].text


def test_the_leaders_are_the_most_accurate():
    result = first_of("leaderboard")
    found = result.measurements
    text = text_of(result)
    for track in found["tracks"]:
        rows = [row for row in found["rows"] if row["track"] == track and row["task"] == "max"]
        best = max((row for row in rows if "reason" not in row), key=lambda row: row["mean"][-1])
        assert f"{name(best['method'])} is the best on max at 16,384 items, with " in text
        assert f"{100 * best['mean'][-1]:.1f} %" in text


def test_a_leaderboard_of_one_task_in_which_a_track_has_nobody():
    whole = first_of("leaderboard")
    rows = [row for row in whole.measurements["rows"] if row["task"] == "most-frequent"]
    config = whole.config | {"tasks": ["most-frequent"]}
    part = changed(whole.model_copy(update={"config": config}), rows=rows)
    titles = [block.title for block in report.describe(part).blocks]
    assert "Track trained" in titles
    assert "Track augmented" not in titles


def test_figure8_compares_at_the_sizes_beyond_training():
    result = figure8(algorithms=3)
    for algorithm in result.measurements["algorithms"].values():
        sizes, largest = algorithm["sizes"], max(algorithm["train_sizes"])
        algorithm["arms"]["softmax"]["mean"] = [0.5] * len(sizes)
        algorithm["arms"]["adaptive"]["mean"] = [float(size <= largest) for size in sizes]
        algorithm["arms"]["inference"]["mean"] = [0.2 + 0.5 * (size > largest) for size in sizes]
    text = text_of(result)
    assert "softmax 50.0 %;" in text
    assert "adaptive, trained 0.0 %, better in 0 of 3 and worse in 3;" in text
    assert "adaptive, tested 70.0 %, better in 3 of 3 and worse in 0." in text


def test_figure8_tells_sizes_trained_at_from_those_beyond():
    result = figure8(algorithms=1)
    (algorithm,) = result.measurements["algorithms"].values()
    inside = [size <= max(algorithm["train_sizes"]) for size in algorithm["sizes"]]
    for arm, (low, high) in {"softmax": (0.5, 0.1), "adaptive": (0.7, 0.3)}.items():
        row = np.where(inside, low, high)
        algorithm["arms"][arm]["accuracy"] = [[row.tolist()] * 2, [(row + 0.1).tolist()] * 2]
    trained, beyond = table(result, "Exact match % by algorithm").rows
    assert trained[:3] == ["algorithm 0", "trained at: 4, 8, 12, 16, 20", 100.0]
    assert [cell.text for cell in trained[3:5]] == ["55.0 ± 7.1", "75.0 ± 7.1"]
    assert beyond[1] == "beyond: 24, 28, 32, 36, 40"
    assert [cell.text for cell in beyond[3:5]] == ["15.0 ± 7.1", "35.0 ± 7.1"]


def test_a_calibration_by_its_heads():
    calibration = first_of("calibration")
    text = text_of(calibration)
    assert f"{len(calibration.heads)} of 270 heads were chosen on the task lookup" in text
    assert "Up to 124 tokens the model answers as before" in text
    without = calibration.model_copy(update={"heads": ()})
    assert "No head was chosen on the task lookup" in text_of(without)
    assert report.describe(without).verdict.status == "neutral"


def test_serving_by_its_numbers():
    result = first_of("serving")
    work = {"stock_seconds": 2.0, "plugin_seconds": 2.06, "ratio": 1.03, "quartiles": [1.01, 1.04]}
    work["stock_spread"] = 1.06
    times = {"rounds": 3, "processes": 3, "threads": 2, "workloads": {"prefill": work}}
    without = {key: part for key, part in result.measurements.items() if key != "throughput"}
    quiet = result.model_copy(update={"measurements": without})
    assert "stock vLLM:" not in text_of(quiet)
    timed = changed(quiet, throughput=times)
    assert "as a ratio to stock vLLM: 1.03 for prefill (lower is better)" in text_of(timed)
    assert "differ among themselves by a factor of up to 1.06" in text_of(timed)
    assert table(timed, "Time").rows[0][3].text == "1.03 (1.01 to 1.04)"
    right = result.measurements["lookup"]["right"]
    assert table(result, "Lookup").rows == list(right.items())
    rows = table(result, "Agreement with sharpen").rows
    compared = {(row[0], row[1]): row[3].value for row in rows}
    ways, files = result.measurements["parity"]["ways"], result.measurements["gguf"]["files"]
    for engine, prefix, parts in (("vLLM", "plugin, ", ways), ("llama.cpp", "exported ", files)):
        for case, part in parts.items():
            what = f"{prefix}{case}" + (" file" if engine == "llama.cpp" else "")
            assert compared[engine, what] == part["largest_difference"]
    assert len(rows) == len(ways) + len(files) + 2 + len(
        result.measurements["architectures"]["models"]
    )


def test_the_cost_of_generating_by_its_numbers():
    times = {
        "64": {"plain": (1.0, 1.0, 1.0, 2000.0), "calibrated": (1.01, 0.99, 1.02, 2020.0)},
        "1024": {"plain": (1.0, 1.0, 1.0, 4000.0), "calibrated": (1.25, 1.2, 1.3, 5000.0)},
    }
    names = ("ratio", "low", "high", "milliseconds")
    measured = {
        tokens: {which: dict(zip(names, numbers, strict=True)) for which, numbers in row.items()}
        for tokens, row in times.items()
    }
    result = changed(first_of("bench-generate"), times=measured)
    text = text_of(result)
    assert "to the plain model: 1.01 after 64 tokens and 1.25 after 1,024 tokens." in text
    assert f"Up to {result.config['from_tokens']} tokens the logits are the same bit for" in text
    rows = table(result, "By the length of the prompt").rows
    assert [row[:3] for row in rows] == [[64, 2.0, 2.02], [1024, 4.0, 5.0]]
    assert rows[1][3].text == "1.25 (1.20 to 1.30)"
