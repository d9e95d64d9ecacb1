"""Differential attention: two sets of logits or an error, never one taken for two."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.special
import torch

import sharpmax as sx
from libraries import Library
from normalisers.slow import by_row
from sharpmax.normalisers import Differential


def pair(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return *(rng.normal(size=(2, 4, 9)) * 2), rng.random((4, 9)) < 0.8


@pytest.mark.parametrize("weight", [0.8, 0.0, 0.2])
@pytest.mark.parametrize("garbage", [5.0, np.nan, np.inf])
def test_the_difference_of_two_softmaxes(quick: Library, rng, weight, garbage):
    first, second, where = pair(rng)
    expected = by_row(scipy.special.softmax, first, where)
    expected = expected - weight * by_row(scipy.special.softmax, second, where)
    filled = [quick.array(np.where(where, one, garbage)) for one in (first, second)]
    for given in (weight, quick.array([[weight]])):
        ours = Differential(given)(*filled, where=quick.array(where, "bool"))
        assert quick.owns(ours)
        np.testing.assert_allclose(quick.numpy(ours), expected, atol=1e-15)


def test_axis_type_and_shift(quick: Library, rng):
    first, second, _ = pair(rng)
    plain = Differential()(first, second)
    turned = Differential()(quick.array(first.T), quick.array(second.T + 3.0), axis=0)
    np.testing.assert_allclose(quick.numpy(turned).T, plain, atol=1e-14)
    np.testing.assert_allclose(plain.sum(-1), 0.2, atol=1e-14)
    narrow = Differential()(quick.array(first, "float32"), quick.array(second, "float32"))
    assert narrow.dtype == quick.array(0.0, "float32").dtype
    if quick.name != "strict":
        half = Differential()(quick.array(first, "float16"), quick.array(second, "float16"))
        # Logits rounded by 2^-11 of up to 8, weights of up to 1 twice, and the answer once.
        np.testing.assert_allclose(quick.numpy(half), plain, atol=(2 * 8 + 1) * 2**-11)
        assert half.dtype == quick.array(0.0, "float16").dtype


def test_empty_rows_infinities_and_nan(quick: Library):
    inf, nan = np.inf, np.nan
    first = quick.array([[-inf, -inf], [inf, 0.0], [nan, 0.0], [1.0, 1.0], [0.0, 0.0]])
    second = quick.array([[-inf, -inf], [0.0, 0.0], [0.0, 0.0], [0.0, inf], [nan, 0.0]])
    ours = quick.numpy(Differential(0.5)(first, second))
    np.testing.assert_allclose(ours[:2], [[0, 0], [0.75, -0.25]])
    assert np.isnan(ours[[2, 4]]).all()
    np.testing.assert_allclose(ours[3], [0.5, 0])


def test_gradients(rng):
    first, second, where = pair(rng)
    leaves = [torch.tensor(one, requires_grad=True) for one in (first, second)]
    leaves.append(torch.full((4, 1), 0.6, dtype=torch.float64, requires_grad=True))
    mask = torch.tensor(where)
    assert torch.autograd.gradcheck(
        lambda a, b, weight: Differential(weight)(a, b, where=mask), leaves
    )
    theirs = jax.jit(
        jax.grad(lambda a: (Differential()(a, a * 2, where=jax.numpy.asarray(where)) ** 2).sum())
    )(jax.numpy.asarray(first))
    leaf = torch.tensor(first, requires_grad=True)
    (Differential()(leaf, leaf * 2, where=mask) ** 2).sum().backward()
    np.testing.assert_allclose(leaf.grad, theirs, atol=1e-14)


@pytest.mark.parametrize(
    ("arrays", "kind", "message"),
    [
        ((np.zeros((2, 3)),), TypeError, r"got one set of logits: expected two, Differential\(\)\(logits, second\)"),
        ((np.zeros((2, 3)), np.zeros(3)), ValueError, r"second of shape \(3,\) must have the shape of logits, \(2, 3\)"),
        ((np.zeros(3), torch.zeros(3)), TypeError, "one library, got logits from numpy, second from torch"),
    ],
)  # fmt: skip
def test_what_it_cannot_do(arrays, kind, message):
    with pytest.raises(kind, match=message):
        sx.NORMALISERS["differential"](*arrays)
