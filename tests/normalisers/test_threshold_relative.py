"""Threshold relative: what is not positive is out, and distance is counted over the rest."""

from __future__ import annotations

import numpy as np
import pytest

from libraries import Library
from normalisers.slow import by_row
from normalisers.slow import threshold_relative as slow
from sharpmax.normalisers import ThresholdRelative


@pytest.mark.parametrize("slope", [0.0, 0.4, -0.2])
def test_distance_counts_kept_items_only(quick: Library, rng, slope):
    logits, where = rng.normal(size=(6, 11)) * 2, rng.random((6, 11)) < 0.8
    expected = by_row(lambda row: slow(row, slope), logits, where)
    for given in (slope, quick.array([[slope]])):
        ours = ThresholdRelative(given)(quick.array(logits), where=quick.array(where, "bool"))
        np.testing.assert_allclose(quick.numpy(ours), expected, rtol=1e-12)


def test_removed_items_change_nothing(quick: Library, rng):
    """More items below the threshold, anywhere, leave the weights of the others alone."""
    kept = np.abs(rng.normal(size=5)) + 0.1
    longer = np.insert(kept, [0, 2, 2, 5], [-1.0, 0.0, -3.0, -0.5])
    ours = quick.numpy(ThresholdRelative(0.3)(quick.array(longer)))
    np.testing.assert_allclose(
        ours[longer > 0], quick.numpy(ThresholdRelative(0.3)(quick.array(kept)))
    )
    assert (ours[longer <= 0] == 0).all()


def test_nothing_passes(quick: Library):
    assert (quick.numpy(ThresholdRelative(0.1)(quick.array([[-1.0, 0.0, -2.0]]))) == 0).all()
