"""Paired statistics: against SciPy where it has the method, else by counting or simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from sharpmax.hf.evaluate import stats


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 5))
def test_one_question_per_prompt_is_mcnemars_exact_test(gained, lost, same):
    differences = np.array([1] * gained + [-1] * lost + [0] * same, dtype=int)
    expected = scipy_stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert stats.sign_flip_test(differences) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.integers(-5, 5), max_size=9))
@settings(deadline=None)
def test_the_questions_of_a_prompt_flip_their_sign_together(differences):
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=len(differences))]
    expected = np.mean(np.array(sums) >= abs(sum(differences)))
    assert stats.sign_flip_test(np.array(differences, dtype=int)) == pytest.approx(expected)


def test_fewer_prompts_than_the_minimum_are_never_significant():
    assert stats.sign_flip_test(np.full(stats.MIN_PROMPTS - 1, 8)) > 0.05
    assert stats.sign_flip_test(np.full(stats.MIN_PROMPTS, 8)) < 0.05


@given(st.integers(0, 40), st.integers(1, 40))
def test_an_accuracy_has_wilsons_interval(right, wrong):
    answers = np.array([True] * right + [False] * wrong)[:, None]
    found = stats.accuracy(answers)
    expected = scipy_stats.binomtest(right, right + wrong).proportion_ci(0.95, "wilson")
    assert found["low"] == pytest.approx(expected.low, abs=1e-12)
    assert found["high"] == pytest.approx(expected.high, abs=1e-12)
    assert found["low"] <= found["mean"] <= found["high"]


def test_correlated_answers_widen_the_interval():
    generator = np.random.default_rng(0)
    alone = generator.random((4000, 5)) < 0.3
    together = np.repeat(generator.random((4000, 1)) < 0.3, 5, axis=1)
    assert stats.design_effect(alone.astype(float)) == pytest.approx(1.0, abs=0.1)
    assert stats.design_effect(together.astype(float)) == pytest.approx(5.0, rel=1e-3)
    wide, narrow = stats.accuracy(together), stats.accuracy(alone)
    ratio = (wide["high"] - wide["low"]) / (narrow["high"] - narrow["low"])
    assert ratio == pytest.approx(5**0.5, rel=0.1)


def test_equal_answers_leave_an_interval():
    answers = np.random.default_rng(0).random((20, 4)) < 0.5
    found = stats.compare_answers(answers, answers)
    assert (found["difference"], found["gained"], found["lost"], found["p"]) == (0.0, 0, 0, 1.0)
    assert found["low"] < -0.01
    assert found["high"] > 0.01


@given(st.integers(0, 30), st.integers(0, 30), st.integers(6, 60))
def test_a_difference_has_the_interval_of_bonett_and_price(gained, lost, same):
    base = np.array([False] * gained + [True] * lost + [True] * same)[:, None]
    other = np.array([True] * gained + [False] * lost + [True] * same)[:, None]
    found = stats.compare_answers(base, other)
    size = gained + lost + same + 2
    up, down = (gained + 1) / size, (lost + 1) / size
    half = scipy_stats.norm.ppf(0.975) * ((up + down - (up - down) ** 2) / size) ** 0.5
    assert found["difference"] == pytest.approx((gained - lost) / (size - 2))
    assert (found["gained"], found["lost"]) == (gained, lost)
    assert found["low"] == pytest.approx(max(-1, up - down - half))
    assert found["high"] == pytest.approx(min(1, up - down + half))
    assert found["detectable"] == stats.detectable_difference(size - 2, up + down)


@given(st.floats(20, 5000), st.floats(0.05, 1))
def test_the_detectable_difference_solves_connors_equation(questions, disagreement):
    d = stats.detectable_difference(questions, disagreement)
    assume(d <= disagreement)
    level, power = scipy_stats.norm.ppf([0.975, 0.8])
    expected = level * disagreement**0.5 + power * (disagreement - d * d) ** 0.5
    assert questions**0.5 * d == pytest.approx(expected)


def pairs(generator, prompts, questions, up, down, together):
    """Answers of two conditions that differ by `up` and `down`; `together`, in whole prompts."""
    shape = (prompts, 1) if together else (prompts, questions)
    draw = np.broadcast_to(generator.random(shape), (prompts, questions))
    base = np.where(draw < up, False, np.where(draw < up + down, True, draw < 0.6))
    other = np.where(draw < up, True, np.where(draw < up + down, False, draw < 0.6))
    return base, other


@pytest.mark.parametrize("together", [False, True])
def test_intervals_cover_the_truth_and_false_positives_are_rare(together):
    generator = np.random.default_rng(1)
    covered = false_positives = 0
    for _ in range(400):
        base, other = pairs(generator, 60, 4, 0.12, 0.06, together)
        found = stats.compare_answers(base, other)
        covered += found["low"] <= 0.06 <= found["high"]
        base, other = pairs(generator, 60, 4, 0.1, 0.1, together)
        false_positives += stats.compare_answers(base, other)["p"] < 0.05
    assert covered >= 0.92 * 400
    assert false_positives <= 0.08 * 400


@pytest.mark.parametrize("disagree", [0.1, 0.25])
def test_a_detectable_difference_is_significant_four_times_in_five(disagree):
    generator = np.random.default_rng(2)
    size = 300
    found = stats.detectable_difference(size, disagree)
    significant = 0
    for _ in range(600):
        base, other = pairs(
            generator, size, 1, (disagree + found) / 2, (disagree - found) / 2, False
        )
        significant += stats.compare_answers(base, other)["p"] < 0.05
    # The exact test has a little less power than the approximate one of the formula.
    assert 0.72 < significant / 600 < 0.86


def test_more_questions_detect_smaller_differences():
    found = [stats.detectable_difference(count, 0.2) for count in (20, 100, 500, 2500)]
    assert found == sorted(found, reverse=True)
    assert stats.detectable_difference(628, 0.2) == pytest.approx(0.05, abs=1e-3)
    assert 0 < stats.detectable_difference(10, 0.001) <= 1


def test_p_values_are_adjusted_by_holms_method():
    adjusted = stats.adjust_p_values([0.01, 0.04, 0.03, 0.005])
    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.adjust_p_values([]) == []
    assert stats.adjust_p_values([0.9, 0.8]) == [1.0, 1.0]


def test_a_mean_difference_has_students_interval_over_prompts():
    generator = np.random.default_rng(3)
    base, other = generator.normal(size=(2, 12, 3))
    found = stats.mean_difference(base, other)
    expected = scipy_stats.ttest_rel(other.mean(1), base.mean(1)).confidence_interval()
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    assert stats.mean_difference(base, base) == {"difference": 0.0, "low": 0.0, "high": 0.0}
