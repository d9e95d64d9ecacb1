"""Two scans in one report: their difference, head by head."""

from __future__ import annotations

import re

import numpy as np
import pytest

import sharpmax as sx
from report.pages import Page
from report.published import first_of
from report.synthetic import changed, scan
from sharpmax import report
from sharpmax.report.kinds import compare, scan_comparison


@pytest.fixture
def before():
    return scan(4, 3, 3)


@pytest.fixture
def after(before):
    """The same scan with twice the entropy in one head, which also looks at another token."""
    result = scan(4, 3, 3, policy="calibration of 1 heads, SHA-256 abc")
    arrays = {name: array.copy() for name, array in before.arrays.items()}
    arrays["last_entropy"][-1, 2, 1] += 1.0
    arrays["strongest"][-1, 2, 1, 0] += 1
    return result.with_arrays(**arrays)


def test_the_head_that_changed_comes_first(before, after):
    content = scan_comparison.describe(before, after)
    table = content.blocks[-1]
    assert table.rows[0][:3] == [2, 1, pytest.approx(1.0)]
    heads = next(block for block in content.blocks if block.template == "heads")
    change = np.array(heads.measures[0].values, float)
    assert heads.first == (2, 1)
    assert change[2, 1] == pytest.approx(1.0)
    assert np.count_nonzero(change) == 1


def test_what_it_says(before, after):
    content = scan_comparison.describe(before, after)
    assert content.title.startswith("Plain and tuned: ")
    assert "In 1 of 12 heads another token gets the most weight." in content.sentences
    assert f"rises by {1 / 12:.2f} nats" in content.verdict.sentence


def test_a_report_of_two_scans_begins_with_it(before, after):
    page = Page(report.render([before, after]))
    sections = [one["id"] for one in page.all("section") if one.get("class") == "result"]
    assert sections == ["comparison", "scan-1", "scan-2"]
    # Answers come before it, and no two entries of the contents are the same.
    html = report.render([before, first_of("evaluate"), after])
    contents = re.search(r"<nav.*?</nav>", html, re.S)[0]
    entries = re.findall(r"<li>(.*?)</li>", contents, re.S)
    assert [re.search(r"#(\w+)", entry)[1] for entry in entries] == [
        "evaluate",
        "comparison",
        "scan",
        "scan",
    ]
    names = [re.sub(r'href="[^"]*"', "", entry) for entry in entries]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("count", [1, 3])
def test_only_two_scans_are_compared(before, count):
    assert compare([before] * count) is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda: scan(4, 3, 2), "different inputs"),
        (lambda: scan(4, 2, 3), "different layers or heads"),
        (lambda: scan(4, 3, 3, inputs_sha256="f"), "different inputs"),
    ],
)
def test_scans_of_something_else_are_not_compared(before, other, reason):
    assert reason in scan_comparison.refuse_comparison([before, other()])
    assert compare([before, other()]) is None


def test_two_checkpoints_are_first_and_second(before):
    content = scan_comparison.describe(before, changed(before))
    assert content.title.startswith("First scan and second scan")
    assert (
        "falls by 0.00" in content.verdict.sentence or "rises by 0.00" in content.verdict.sentence
    )


def test_the_papers_policy_has_its_name(before):
    content = scan_comparison.describe(before, scan(4, 3, 3, policy=repr(sx.PAPER)))
    assert "sharpened: the paper's polynomial" in content.facts
    assert content.title.startswith("Plain and sharpened")
