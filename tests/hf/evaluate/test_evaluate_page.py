"""The tables of docs/evaluate.md and docs/tune.md are those of the published results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sharpmax.hf import Evaluation

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "evaluate.md").read_text("utf-8")
TUNE_PAGE = (ROOT / "docs" / "tune.md").read_text("utf-8")
RESULTS = sorted((ROOT / "results").glob("**/evaluate_*.json"))


def interval(low, high, digits):
    return f"{low:+.{digits}f} to {high:+.{digits}f}"


def table(result):
    """Return the table in markdown, a line for each length and condition."""
    lines = [
        f"| {result.config['unit']} | | right % | change, 95 % | p | log p(right) | change, 95 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result.measurements["rows"]:
        cells = [f"{row['length']:,}", row["arm"], f"{100 * row['accuracy']['mean']:.1f}"]
        score = f"{row['log_probability']:.2f}"
        if "compared" in row:
            share, change = row["compared"], row["log_probability_compared"]
            both = interval(100 * share["low"], 100 * share["high"], 1)
            cells += [f"{100 * share['difference']:+.1f}, {both}", f"{share['p_adjusted']:.1g}"]
            both = interval(change["low"], change["high"], 2)
            cells += [score, f"{change['difference']:+.2f}, {both}"]
        else:
            cells += ["", "", score, ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_published_table_is_on_the_page(path):
    result = Evaluation.load(path)
    assert table(result) in (TUNE_PAGE if path.parent.name == "smollm2" else PAGE)


def test_the_page_states_the_power_and_quotes_the_calibration():
    evaluations = [Evaluation.load(path) for path in RESULTS if path.parent.name != "smollm2"]
    assert {"lookup", "passkey"} <= {evaluation.config["task"] for evaluation in evaluations}
    lookup = next(each for each in evaluations if each.config["task"] == "lookup")
    detectable = [
        100 * row["compared"]["detectable"]
        for row in lookup.measurements["rows"]
        if "compared" in row
    ]
    stated = re.search(r"a difference of ([\d.]+) to ([\d.]+) points would be seen", PAGE)
    assert stated
    assert [f"{min(detectable):.1f}", f"{max(detectable):.1f}"] == list(stated.groups())
    line = re.search(r'^\{"layer": 19.*\}$', PAGE, re.M)[0]
    assert line in (ROOT / "results" / "calibration-answers.json").read_text()
