"""Thresholded differential attention: what chance does not reach, of two sets of logits."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from normalisers.slow import by_row
from sharpmax.normalisers import ThresholdedDifferential
from strategies import GENERATOR, LIBRARY


def exceed(threshold, power):
    """One map of one row, literally: tau of arXiv 2601.12145 times sqrt(d), kappa = 1."""

    def weights(row):
        tau = threshold * np.sqrt(2 * np.log(row.size))
        return np.array([max(logit - tau, 0.0) ** power if logit > tau else 0.0 for logit in row])

    return weights


def pair(rng):
    return *(rng.normal(size=(2, 4, 9)) * 3), rng.random((4, 9)) < 0.8


@given(
    library=LIBRARY,
    rng=GENERATOR,
    threshold=st.floats(-1, 1.5),
    second_weight=st.floats(-1, 1),
    power=st.sampled_from([1.0, 2.0, 3.5]),
    garbage=st.sampled_from([5.0, np.nan, np.inf]),
)
def test_is_the_published_formula(library, rng, threshold, second_weight, power, garbage):
    first, second, where = pair(rng)
    literal = exceed(threshold, power)
    expected = by_row(literal, first, where) - second_weight * by_row(literal, second, where)
    filled = [library.array(np.where(where, one, garbage)) for one in (first, second)]
    for fields in (
        (threshold, second_weight),
        (library.array([[threshold]]), library.array([[second_weight]])),
    ):
        ours = ThresholdedDifferential(*fields, power)(*filled, where=library.array(where, "bool"))
        assert library.owns(ours)
        np.testing.assert_allclose(library.numpy(ours), expected, rtol=1e-11, atol=1e-12)


def test_chance_lets_as_many_items_pass_in_long_rows_as_in_short_ones():
    rng = np.random.default_rng(0)
    for items, expected in ((64, 0.126), (4_096, 0.093)):
        by_chance = items * scipy.stats.norm.sf(math.sqrt(2 * math.log(items)))
        assert by_chance == pytest.approx(expected, abs=1e-3)
        logits = rng.normal(size=(2_000, items))
        passed = (ThresholdedDifferential(second_weight=0.0)(logits, logits) > 0).sum(1).mean()
        assert passed == pytest.approx(by_chance, abs=4 * math.sqrt(by_chance / 2_000))


def test_axis_and_half_precision(quick: Library, rng):
    first, second, _ = pair(rng)
    plain = ThresholdedDifferential(0.5)(first, second)
    turned = ThresholdedDifferential(0.5)(quick.array(first.T), quick.array(second.T), axis=0)
    np.testing.assert_allclose(quick.numpy(turned).T, plain, atol=1e-13)
    if quick.name != "strict":
        half = [quick.array(one, "float16") for one in (first, second)]
        exact = ThresholdedDifferential(0.5)(*(quick.numpy(one).astype(float) for one in half))
        ours = ThresholdedDifferential(0.5)(*half)
        assert ours.dtype == half[0].dtype
        # Rounded once at the end; squares of up to 12 in single precision before.
        np.testing.assert_allclose(quick.numpy(ours), exact, rtol=2**-11, atol=1e-4)


def test_empty_rows_and_nan(quick: Library):
    inf, nan = np.inf, np.nan
    first = quick.array([[-inf, -inf], [nan, 0.0], [3.0, 1.0], [0.0, 0.0]])
    second = quick.array([[-inf, -inf], [0.0, 0.0], [0.0, 0.0], [nan, 0.0]])
    ours = quick.numpy(ThresholdedDifferential(0.0)(first, second))
    assert (ours[0] == 0).all()
    assert np.isnan(ours[[1, 3]]).all()
    np.testing.assert_allclose(ours[2], [9.0, 1.0])


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_gradients(rng, power):
    first, second, where = pair(rng)
    leaves = [torch.tensor(one, requires_grad=True) for one in (first, second)]
    leaves += [torch.full((4, 1), x, dtype=torch.float64, requires_grad=True) for x in (0.3, 0.6)]
    mask = torch.tensor(where)

    def weights(first, second, threshold, weight):
        return ThresholdedDifferential(threshold, weight, power)(first, second, where=mask)

    assert torch.autograd.gradcheck(weights, leaves)
    sums = weights(*leaves).square().sum()
    ours = torch.autograd.grad(sums, leaves)
    theirs = jax.jit(
        jax.grad(
            lambda leaves: (
                ThresholdedDifferential(leaves[2], leaves[3], power)(
                    leaves[0], leaves[1], where=jax.numpy.asarray(where)
                )
                ** 2
            ).sum()
        )
    )([jax.numpy.asarray(leaf.detach().numpy()) for leaf in leaves])
    for mine, its in zip(ours, theirs, strict=True):
        assert np.abs(its).max() > 1e-3
        np.testing.assert_allclose(mine, its, rtol=1e-10, atol=1e-10)


def test_one_set_of_logits_is_not_enough():
    with pytest.raises(TypeError, match=r"got one set of logits: expected two, ThresholdedDiff"):
        sx.NORMALISERS["thresholded-differential"](np.zeros((2, 3)))
