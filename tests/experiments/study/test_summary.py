"""Tests, power and verdicts of the study, against values that were computed by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from sharpmax.experiments.study import summary
from sharpmax.experiments.study.config import CONDITIONS, MODELS, RULER

PLAIN = [[1, 0, 0, 0], [1], [0, 0, 0], [0], [1, 1, 0, 0], [0]]
OTHER = [[1, 1, 1, 0], [1], [1, 0, 0], [1], [1, 1, 1, 1], [0]]


def test_the_protocol_has_42_primary_tests_and_280_prompts_of_ruler():
    assert summary.PRIMARY_TESTS == 42
    assert len(CONDITIONS) == 8
    sizes = MODELS["smollm2"]
    assert sizes.prompts * len(RULER) * len(sizes.ruler_tokens) == 280


def test_scores_are_shares_and_prompts_are_the_unit():
    found = summary.compare(PLAIN, OTHER)
    differences = np.array([0.5, 0, 1 / 3, 1, 0.5, 0])
    interval = ttest_1samp(differences, 0).confidence_interval(0.95)
    assert found["difference"] == pytest.approx(differences.mean())
    assert (found["low"], found["high"]) == pytest.approx((interval.low, interval.high))
    flips = [abs(np.dot(signs, differences)) for signs in product([-1, 1], repeat=6)]
    share = np.mean(np.array(flips) >= differences.sum() - 1e-9)
    assert found["p"] == pytest.approx(share)


def test_prompts_that_all_change_alike_have_an_interval_without_width():
    found = summary.compare([[0]] * 6, [[1]] * 6)
    assert (found["difference"], found["low"], found["high"]) == (1, 1, 1)
    assert found["p"] == pytest.approx(2 * 0.5**6)
    assert found["detectable"] == 0


def test_power_is_that_of_the_protocol():
    # docs/study.md: 280 prompts that vary by 0.40 find 6.7 points, and 9.8 at the strictest step.
    assert summary.detectable(0.4, 280, 0.05) == pytest.approx(0.067, abs=0.0005)
    assert summary.detectable(0.4, 280, 0.05 / 42) == pytest.approx(0.098, abs=0.0005)
    assert summary.detectable(0.25, 40, 0.05) == pytest.approx(0.11, abs=0.005)


def test_missing_tests_count_as_if_they_had_found_nothing():
    tests = [{"p": 0.01}, {"p": 0.001}]
    summary._adjust(tests, 42)
    assert [test["p_adjusted"] for test in tests] == pytest.approx([0.41, 0.042])


def pools(lookup=(0.2, 0.01), ruler=(0.0, 1.0), short=(-0.01, 0.01)) -> list[dict]:
    """Rows with (difference, adjusted p) of the families and the interval of short tasks."""
    return [
        {"group": group, "compared": {"difference": difference, "p_adjusted": p}}
        for group, (difference, p) in (("lookup", lookup), ("ruler", ruler))
    ] + [
        {"group": "short tasks", "compared": {"difference": 0.0, "low": short[0], "high": short[1]}}
    ]


def texts(essays=0.005, guard=0.005) -> list[dict]:
    return [
        {"cell": "essays", "nats_change": {"difference": essays}},
        {"cell": "guard", "nats_change": {"difference": guard}},
    ]


@pytest.mark.parametrize(
    ("rows", "costs", "verdict", "reasons"),
    [
        (pools(), texts(), "helps", ["lookup rises"]),
        (pools(lookup=(0.2, 0.06)), texts(), "undecided", []),
        (pools(ruler=(-0.1, 0.01)), texts(), "harms", ["ruler falls", "lookup rises"]),
        (pools(ruler=(-0.1, 0.06)), texts(), "helps", ["lookup rises"]),
        (
            pools(short=(-0.04, 0.01)),
            texts(),
            "undecided",
            ["lookup rises", "short tasks may fall"],
        ),
        (pools(short=(-0.09, -0.04)), texts(), "harms", ["short tasks fall", "lookup rises"]),
        (pools(), texts(essays=0.011), "harms", ["essays cost more", "lookup rises"]),
        (pools(), texts(guard=0.011), "harms", ["guard cost more", "lookup rises"]),
        (pools()[:1], texts(), "unfinished", ["lookup rises"]),
        (pools(), texts()[:1], "unfinished", ["lookup rises"]),
        (pools(lookup=(-0.2, 0.01))[:1], [], "harms", ["lookup falls"]),
    ],
)
def test_the_verdict_follows_the_rules_of_the_protocol(rows, costs, verdict, reasons):
    assert summary.judge(rows, costs) == {"verdict": verdict, "reasons": reasons}
