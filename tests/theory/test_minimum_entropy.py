"""minimum_entropy: nothing goes below it, and one row attains it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from sharpmax import theory


def two_level(count: int, top: int, spread: float) -> np.ndarray:
    row = np.zeros(count)
    row[:top] = spread
    return row


@given(st.lists(st.floats(-15, 15), min_size=1, max_size=40).map(np.array), st.floats(0.1, 10))
def test_nothing_goes_below(logits, temperature):
    least = theory.minimum_entropy(logits.size, float(np.ptp(logits)), temperature)
    assert sx.entropy(logits, temperature=temperature) >= least - 1e-9


@given(st.integers(1, 60), st.floats(0, 12), st.floats(0.3, 4))
def test_is_the_best_of_all_two_level_rows(count, spread, temperature):
    by_hand = min(
        float(sx.entropy(two_level(count, top, spread), temperature=temperature))
        for top in range(1, count + 1)
    )
    ours = theory.minimum_entropy(count, spread, temperature)
    assert ours == pytest.approx(by_hand, abs=1e-9)


def test_one_at_the_top_is_not_always_best():
    """With many items and little spread, several at the top are sharper than one."""
    alone = float(sx.entropy(two_level(1000, 1, 2.0)))
    assert theory.minimum_entropy(1000, 2.0) < alone - 0.1


def test_grows_like_log_n():
    counts = 2.0 ** np.arange(4, 40)
    least = theory.minimum_entropy(counts, 3.0)
    steps = np.diff(least)
    np.testing.assert_allclose(steps[-10:], math.log(2), rtol=1e-9)
    assert (steps > 0).all()


@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-6])
def test_equal_logits_are_uniform(lib: Library, spread):
    ours = theory.minimum_entropy(lib.array([1.0, 2.0, 1e6]), spread)
    np.testing.assert_allclose(lib.numpy(ours), np.log([1.0, 2.0, 1e6]), atol=1e-9)


def test_a_huge_spread_allows_zero(lib: Library):
    assert lib.numpy(theory.minimum_entropy(lib.array([50.0]), 1e4)).item() == 0.0
