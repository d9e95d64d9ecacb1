"""Figure 1: the head stays inside the bounds at every size and disperses where theory says."""

from __future__ import annotations

import numpy as np
import pytest

from sharpmax.experiments import one_head

SMALL = one_head.Config(sizes=(1, 2, 8, 64, 1000, 70_000), repeats=3)


@pytest.fixture(scope="module")
def measured():
    return one_head.run(SMALL).measurements


def test_every_weight_is_inside_both_bounds(measured):
    needle, smallest = np.array(measured["needle_weight"]), np.array(measured["smallest_weight"])
    high, low = np.array(measured["tight_high"])[:, None], np.array(measured["tight_low"])[:, None]
    assert (needle <= high * (1 + 1e-12)).all()
    assert (smallest >= low * (1 - 1e-12)).all()
    assert (np.array(measured["paper_high"]) >= measured["tight_high"]).all()
    assert (
        np.array(measured["entropy"]) >= np.array(measured["minimum_entropy"])[:, None] - 1e-12
    ).all()


def test_the_head_disperses(measured):
    needle = np.array(measured["needle_weight"]).mean(axis=1)
    assert needle[0] == 1.0
    assert needle[2] > 0.5
    assert needle[-1] < 1e-3
    past = np.array(SMALL.sizes) >= measured["dispersed_from"]
    assert past.any()
    assert (np.array(measured["needle_weight"])[past] < SMALL.epsilon).all()


def test_chunks_equal_the_whole(monkeypatch):
    config = one_head.Config(sizes=(500,), repeats=2)
    whole = one_head.run(config).measurements
    monkeypatch.setattr(one_head, "CHUNK", 64)  # eight chunks, the last one short
    chunks = one_head.run(config).measurements
    for name in ("needle_weight", "smallest_weight", "entropy"):
        np.testing.assert_allclose(chunks[name], whole[name], rtol=1e-12)


def test_an_input_has_as_many_items_as_asked_for(monkeypatch):
    """Equal logits have an entropy of log(size)."""
    monkeypatch.setattr(one_head, "CHUNK", 3)
    sizes = (1, 2, 7, 8, 100)
    measured = one_head.run(one_head.Config(spread=1e-9, sizes=sizes, repeats=1)).measurements
    np.testing.assert_allclose(np.ravel(measured["entropy"]), np.log(sizes), atol=1e-8)
    assert [len(weights) for weights in measured["shown_weights"]] == [8, 32, 128, 512]
    np.testing.assert_allclose([sum(weights) for weights in measured["shown_weights"]], 1.0)


def test_the_spread_is_the_one_asked_for():
    logits = one_head.vocabulary_logits(SMALL, np.random.default_rng(3))
    assert logits.size == SMALL.vocabulary
    assert np.ptp(logits) == pytest.approx(SMALL.spread)


def test_same_seed_same_numbers():
    again = one_head.run(SMALL)
    assert again.measurements == one_head.run(SMALL).measurements
    other = one_head.run(one_head.Config(sizes=SMALL.sizes, repeats=3, seed=1))
    assert other.measurements["needle_weight"] != again.measurements["needle_weight"]
