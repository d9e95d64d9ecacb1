"""Figure 6: the best inverse temperature of a set is a root, and polynomials go through the cloud."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from sharpmax.experiments.max_retrieval import fit, heads

GRID = np.exp(np.linspace(np.log(1e-3), np.log(1e3), 20_001))


@given(seed=st.integers(0, 10_000), items=st.integers(2, 40), rank=st.integers(1, 39))
def test_the_best_inverse_temperature_beats_a_grid(seed, items, rank):
    logits = np.random.default_rng(seed).normal(size=items) * 2
    place = int(np.argsort(-logits)[min(rank, items - 1)])
    best = fit.best_inverse_temperature(logits, place)
    offsets = logits - logits[place]
    log_weight = -np.log(np.exp(np.clip(GRID[:, None] * offsets, -700, 700)).sum(1))
    if best == 0:
        assert logits[place] <= logits.mean()
        assert log_weight.argmax() == 0
    else:
        assert GRID[log_weight.argmax()] == pytest.approx(best, rel=1e-2, abs=1e-3)


def test_a_maximum_that_leads_asks_for_no_temperature_at_all():
    assert fit.best_inverse_temperature(np.asarray([1.0, 3.0, 2.0]), 1) == math.inf
    assert fit.best_inverse_temperature(np.asarray([3.0, 3.0]), 0) == math.inf
    assert fit.best_inverse_temperature(np.asarray([0.0, 3.0, 3.0]), 0) == 0.0


def test_fits_find_a_polynomial_that_is_there(rng):
    entropies = rng.uniform(0.9, 4.5, 4_000)
    truth = sx.PAPER(entropies, entropies)
    fits = fit.fitted_to(entropies, truth)
    for name, policy in fits.items():
        np.testing.assert_allclose(policy(entropies, entropies), truth, atol=0.02, err_msg=name)
    # A few sets that ask for a hundred move the one fit and not the other.
    wild = np.where(rng.uniform(size=4_000) < 0.02, 100.0, truth)
    moved = {
        name: np.abs(p(entropies, entropies) - truth).mean()
        for name, p in fit.fitted_to(entropies, wild).items()
    }
    assert moved["temperature"] < 0.1
    assert moved["inverse temperature"] > 1.0


def test_where_the_papers_polynomial_switches_itself_off():
    ((low, high),) = fit.reach(sx.PAPER)
    assert (low, high) == (pytest.approx(0.849, abs=2e-3), pytest.approx(5.945, abs=2e-3))
    assert fit.reach(sx.Polynomial((0.5,))) == []
    assert fit.reach(sx.Polynomial((1.5,)))[0][1] == fit.MOST_NATS


def test_the_cloud_of_a_head():
    trained = heads.load("max")
    config = fit.Config(sizes=(16, 2_048), sets=20)
    shares = []
    cloud = fit.cloud(fit.Job(trained.of(0), True, 0, config), shares.append)
    assert shares == [0.5, 1.0]
    assert cloud.size.tolist() == [16] * 20 + [2_048] * 20
    small, large = cloud.size == 16, cloud.size == 2_048
    assert cloud.entropy[small].mean() < 0.3 < 1 < cloud.entropy[large].mean()
    assert np.isinf(cloud.best[small]).mean() > 0.9 > np.isinf(cloud.best[large]).mean()
