"""Figure 5: the plane equals its definition, its edges are degenerate, and regions are ordered."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from sharpmax.experiments import power_series

SMALL = power_series.Config(bases=51, temperatures=41)


@pytest.fixture(scope="module")
def result():
    return power_series.run(SMALL)


def test_both_edges_are_uniform_at_every_temperature(result):
    plane = result.arrays["entropy"]
    np.testing.assert_allclose(plane[:, [0, -1]], math.log(10), rtol=1e-12)
    assert np.isfinite(plane).all()


def test_the_plane_equals_the_definition(result):
    row, column = 12, 30
    base, temperature = result.arrays["base"][column], result.arrays["temperature"][row]
    weights = np.exp(base ** np.arange(1, 11) / temperature)
    expected = scipy.stats.entropy(weights)
    assert result.arrays["entropy"][row, column] == pytest.approx(expected, rel=1e-10)


def test_entropy_rises_with_the_temperature(result):
    assert (np.diff(result.arrays["entropy"], axis=0) >= -1e-12).all()


def test_regions(result):
    plane, region = result.arrays["entropy"], result.arrays["region"]
    limit = result.measurements["sharp_below_entropy"]
    assert ((region == 0) == (plane < limit)).all()
    hot_from = result.measurements["hot_from_temperature"]
    hot_rows = result.arrays["temperature"] >= hot_from
    assert (region[hot_rows] == 1).all()
    assert not (region[~hot_rows] == 1).any()
    # Along a row that has a sharp part: vanishing, then sharp, then constant.
    for row in region[~hot_rows]:
        changes = row[np.flatnonzero(np.diff(row, prepend=-1))]
        assert changes.tolist() == [2, 0, 3]
    assert sum(result.measurements["share_of_plane"].values()) == pytest.approx(1.0)
