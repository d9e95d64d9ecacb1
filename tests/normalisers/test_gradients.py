"""Gradients of every normaliser, in the logits and in what is learned: right, finite, one everywhere."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
import torch

from normalisers.slow import QUICKLY, ROWS
from sharpmax import normalisers


def trained(name: str, values: list) -> normalisers.Normaliser:
    learned = ROWS[name].parameters
    return dataclasses.replace(ROWS[name], **dict(zip(learned, values, strict=True)))


AWKWARD = [[1.0, 2.0, np.nan, 1.5], [-np.inf, 0.0, 1.0, -np.inf], [-np.inf] * 4]
SEEN = [[True, True, False, True], [True] * 4, [True] * 4]


def initial(name: str, rows: int) -> list[np.ndarray]:
    """One entry a row for each learned field, near the default and different in each row."""
    start = [getattr(ROWS[name], parameter) for parameter in ROWS[name].parameters]
    return [value + np.linspace(0.02, 0.3, rows)[:, None] for value in start]


def gradients_torch(name: str, logits, where, direction) -> list[np.ndarray]:
    leaves = [
        torch.tensor(one, requires_grad=True) for one in (logits, *initial(name, len(logits)))
    ]
    weights = trained(name, leaves[1:])(leaves[0], where=torch.tensor(where))
    found = torch.autograd.grad((weights * torch.tensor(direction)).sum(), leaves)
    return [gradient.numpy() for gradient in found]


def gradients_jax(name: str, logits, where, direction) -> list[np.ndarray]:
    def loss(leaves):
        weights = trained(name, leaves[1:])(leaves[0], where=jax.numpy.asarray(where))
        return (weights * direction).sum()

    leaves = [jax.numpy.asarray(one) for one in (logits, *initial(name, len(logits)))]
    return [
        np.asarray(gradient)
        for gradient in jax.jit(jax.grad(loss), compiler_options=QUICKLY)(leaves)
    ]


@pytest.mark.parametrize("name", [name for name in ROWS if name != "hard"])
def test_gradients_are_those_of_finite_differences(rng, name):
    """In the logits and in everything learned."""
    logits, where = rng.normal(size=(3, 11)), rng.random((3, 11)) < 0.8
    leaves = [torch.tensor(one, requires_grad=True) for one in (logits, *initial(name, 3))]
    mask = torch.tensor(where)
    assert torch.autograd.gradcheck(lambda x, *p: trained(name, list(p))(x, where=mask), leaves)
    found = gradients_torch(name, logits, where, rng.normal(size=(3, 11)))
    assert all(np.abs(gradient).max() > 1e-4 for gradient in found)


@pytest.mark.parametrize("name", ROWS)
def test_no_nan_reaches_a_gradient(rng, name):
    """Masked NaN, additive -inf, rows of nothing, +inf: the gradient is finite, and 0 there.

    And the same by torch and by JAX under jit, in rows that are not awkward too.
    """
    infinite = [np.inf, 1.0, 2.0, 0.0]
    logits = np.array([*AWKWARD, infinite, *rng.normal(size=(2, 4))])
    where = np.array([*SEEN, [True] * 4, *(rng.random((2, 4)) < 0.8)])
    if name in ("relu", "linear"):  # an infinite weight has no gradient in what it is divided by
        logits, where = np.delete(logits, 3, 0), np.delete(where, 3, 0)
    direction = rng.normal(size=logits.shape)
    theirs = gradients_jax(name, logits, where, direction)
    for mine, its in zip(gradients_torch(name, logits, where, direction), theirs, strict=True):
        assert np.isfinite(its).all()
        np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-12)
    gradient = theirs[0]
    assert (gradient[0, 2], gradient[1, 0], gradient[1, 3], *gradient[2]) == (0.0,) * 7
    assert np.abs(gradient[:2]).max() > 0.01
