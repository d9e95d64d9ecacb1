"""Stieltjes: a power law below a point above the maximum."""

from __future__ import annotations

import numpy as np
import pytest

import sharpmax as sx
from libraries import Library
from normalisers.slow import stieltjes as slow
from sharpmax.normalisers import Stieltjes


@pytest.mark.parametrize(
    "law", [(1.0, 1.0, 1.0), (0.5, 0.0, 1.0), (2.0, 0.3, 0.0), (8.0, 1.0, 2.0)]
)
def test_any_power_and_scale(quick: Library, rng, law):
    logits = rng.normal(size=(4, 9)) * 3
    ours = quick.numpy(Stieltjes(*law)(quick.array(logits)))
    for row, weights in zip(logits, ours, strict=True):
        # The slow root lies 1e-15 of lambda off, and lambda goes to the power.
        np.testing.assert_allclose(weights, slow(row, *law), rtol=1e-12)


def test_a_power_a_row(quick: Library, rng):
    logits = rng.normal(size=(3, 6))
    powers = np.array([[0.7], [1.0], [3.0]])
    ours = quick.numpy(Stieltjes(quick.array(powers))(quick.array(logits)))
    for row, power, weights in zip(logits, powers[:, 0], ours, strict=True):
        np.testing.assert_allclose(weights, slow(row, power), rtol=1e-12)


def test_one_over_the_distance(quick: Library):
    """Two items 1.5 apart: 1/x + 1/(x + 1.5) = 1, or x^2 - x/2 - 3/2 = 0, at x = 1.5."""
    above = 1.5
    ours = quick.numpy(Stieltjes()(quick.array([[4.0, 2.5]])))
    np.testing.assert_allclose(ours, [[1 / above, 1 / (above + 1.5)]], rtol=1e-14)


def test_goes_to_softmax(rng):
    logits = rng.normal(size=(4, 9))
    for power in (1e3, 1e6, 1e9):
        ours = Stieltjes(power)(logits / power)
        # The next term of the logarithm is z^2 / (2 power), below 10 / power here.
        np.testing.assert_allclose(ours, sx.softmax(logits), atol=10 / power)


def test_falls_off_like_a_power():
    """Far below the top softmax has nothing left; here twice as far is 2^-q as much."""
    logits = np.array([0.0, -1e4, -2e4])
    ours = Stieltjes(power=2.0)(logits)
    np.testing.assert_allclose(ours[1] / ours[2], 4.0, rtol=1e-3)
    assert sx.softmax(logits)[1] == 0


def test_a_power_that_is_not_positive_spoils_its_row_only(quick: Library, rng):
    ours = quick.numpy(
        Stieltjes(quick.array([[1.0], [-1.0]]))(quick.array(rng.normal(size=(2, 5))))
    )
    assert np.isnan(ours).all(axis=-1).tolist() == [False, True]
