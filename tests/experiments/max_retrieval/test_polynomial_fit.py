"""Figure 6: the best inverse temperature is a root, and polynomials are fitted to the cloud."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from sharpmax.experiments.max_retrieval import heads, polynomial_fit

GRID = np.exp(np.linspace(np.log(1e-3), np.log(1e3), 20_001))


@given(seed=st.integers(0, 10_000), items=st.integers(2, 40), rank=st.integers(1, 39))
def test_the_best_inverse_temperature_beats_a_grid(seed, items, rank):
    logits = np.random.default_rng(seed).normal(size=items) * 2
    index = int(np.argsort(-logits)[min(rank, items - 1)])
    best = polynomial_fit.best_inverse_temperature(logits, index)
    offsets = logits - logits[index]
    log_weight = -np.log(np.exp(np.clip(GRID[:, None] * offsets, -700, 700)).sum(1))
    if best == 0:
        assert logits[index] <= logits.mean()
        assert log_weight.argmax() == 0
    else:
        assert GRID[log_weight.argmax()] == pytest.approx(best, rel=1e-2, abs=1e-3)


def test_a_maximum_that_leads_has_an_infinite_best_inverse_temperature():
    best = polynomial_fit.best_inverse_temperature
    assert best(np.asarray([1.0, 3.0, 2.0]), 1) == math.inf
    assert best(np.asarray([3.0, 3.0]), 0) == math.inf
    assert best(np.asarray([0.0, 3.0, 3.0]), 0) == 0.0


def test_fits_recover_a_polynomial(rng):
    entropies = rng.uniform(0.9, 4.5, 4_000)
    truth = sx.PAPER(entropies, entropies)
    fits = polynomial_fit.fit_policies(entropies, truth)
    for name, policy in fits.items():
        np.testing.assert_allclose(policy(entropies, entropies), truth, atol=0.02, err_msg=name)
    # A few sets with an inverse temperature of a hundred move one fit and not the other.
    wild = np.where(rng.uniform(size=4_000) < 0.02, 100.0, truth)
    moved = {
        name: np.abs(policy(entropies, entropies) - truth).mean()
        for name, policy in polynomial_fit.fit_policies(entropies, wild).items()
    }
    assert moved["temperature"] < 0.1
    assert moved["inverse temperature"] > 1.0
    error = polynomial_fit._temperature_error
    assert error(sx.PAPER, entropies, np.maximum(truth, 1.0)) == pytest.approx(0.0, abs=1e-6)


def test_the_paper_s_polynomial_sharpens_in_one_range_of_entropy():
    ((low, high),) = polynomial_fit.sharpening_ranges(sx.PAPER)
    assert (low, high) == (pytest.approx(0.849, abs=2e-3), pytest.approx(5.945, abs=2e-3))
    assert polynomial_fit.sharpening_ranges(sx.Polynomial((0.5,))) == []
    ((_, end),) = polynomial_fit.sharpening_ranges(sx.Polynomial((1.5,)))
    assert end == polynomial_fit.LARGEST_ENTROPY


@pytest.fixture(scope="module")
def result(inline_jobs):
    config = polynomial_fit.Config(sizes=(16, 2_048), sets=30, seeds=(0,), degree=1)
    shares = []
    report = lambda phase, count, index, share: shares.append((phase, count, share))  # noqa: E731
    return polynomial_fit.run(config, progress=report), shares


def test_large_sets_are_dispersed_and_their_maximum_leads_less_often(result):
    found, shares = result
    assert shares == [("fitting", 1, 0.5), ("fitting", 1, 1.0), ("fitting", 1, 1.0)]
    size, entropy = found.arrays["size"], found.arrays["entropy"]
    assert size.tolist() == [16] * 30 + [2_048] * 30
    assert entropy[:30].mean() < 0.3 < 1 < entropy[30:].mean()
    leading = found.measurements["leading"]
    assert leading["16"] > 0.9 > leading["2048"]
    infinite = np.isnan(found.arrays["best"])
    assert leading["2048"] == pytest.approx(infinite[30:].mean())
    assert found.measurements["heads_sha256"] == heads.load("max").only((0,)).sha256
    assert set(found.measurements["coefficients"]) == set(found.measurements["sharpens"])
