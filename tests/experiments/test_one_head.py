"""Figure 1's head: really computed, inside its bounds at every size, dispersed where theory says."""

from __future__ import annotations

import numpy as np
import pytest

from sharpmax.experiments import one_head

SMALL = one_head.Config(sizes=(1, 2, 8, 64, 1000, 70_000), repeats=3)


@pytest.fixture(scope="module")
def found():
    return one_head.run(SMALL).measurements


def test_every_weight_is_inside_both_bounds(found):
    needle, smallest = np.array(found["needle_weight"]), np.array(found["smallest_weight"])
    high, low = np.array(found["tight_high"])[:, None], np.array(found["tight_low"])[:, None]
    assert (needle <= high * (1 + 1e-12)).all()
    assert (smallest >= low * (1 - 1e-12)).all()
    assert (np.array(found["paper_high"]) >= found["tight_high"]).all()
    assert (np.array(found["entropy"]) >= np.array(found["minimum_entropy"])[:, None] - 1e-12).all()


def test_the_head_disperses(found):
    needle = np.array(found["needle_weight"]).mean(axis=1)
    assert needle[0] == 1.0
    assert needle[2] > 0.5
    assert needle[-1] < 1e-3
    past = np.array(SMALL.sizes) >= found["dispersed_from"]
    assert past.any()
    assert (np.array(found["needle_weight"])[past] < SMALL.epsilon).all()


def test_pieces_equal_the_whole(monkeypatch):
    small_pieces = one_head.Config(sizes=(500,), repeats=2)
    whole = one_head.run(small_pieces).measurements
    monkeypatch.setattr(one_head, "PIECE", 500)
    assert one_head.run(small_pieces).measurements["entropy"] == whole["entropy"]


def test_the_spread_is_the_one_asked_for():
    logits = one_head.vocabulary_logits(SMALL, np.random.default_rng(3))
    assert logits.size == SMALL.vocabulary
    assert np.ptp(logits) == pytest.approx(SMALL.spread)


def test_same_seed_same_numbers():
    again = one_head.run(SMALL)
    assert again.measurements == one_head.run(SMALL).measurements
    other = one_head.run(one_head.Config(sizes=SMALL.sizes, repeats=3, seed=1))
    assert other.measurements["needle_weight"] != again.measurements["needle_weight"]
