"""Tests over seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sharpmax.experiments.max_retrieval import statistics


def test_the_paired_test_is_scipys(rng):
    one, other = rng.normal(size=(2, 10, 4))
    expected = stats.ttest_rel(other, one).pvalue
    np.testing.assert_allclose(statistics.paired_p(one, other), expected)


def test_nothing_to_test(rng):
    same = rng.normal(size=(10, 2))
    assert statistics.paired_p(same, same) == [None, None]
    assert statistics.paired_p(same[:1], same[1:2]) == [None, None]  # one seed
    assert statistics.spread(same[:1]) is None


def test_spread_is_of_a_sample():
    assert statistics.spread(np.asarray([[1.0], [3.0]])) == pytest.approx(2**0.5)


def test_the_sampling_error_of_ten_seeds_is_at_most_half_a_point():
    assert statistics.sampling_error(np.asarray([0.5]), 10 * 1_024)[0] < 0.005
