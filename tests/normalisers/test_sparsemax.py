"""Sparsemax: the projection onto the simplex, and the `entmax` package's answer."""

from __future__ import annotations

import entmax
import numpy as np
import pytest
import torch

from sharpmax.normalisers import Entmax, Sparsemax


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_agrees_with_the_entmax_package(rng, axis):
    """Values and gradients. Its axis is given from the front: its own negative one is off."""
    logits = rng.normal(size=(5, 9, 7)) * np.array([0.1, 0.5, 1, 2, 8])[:, None, None]
    direction = torch.tensor(rng.normal(size=logits.shape))
    ours, theirs = (torch.tensor(logits, requires_grad=True) for _ in range(2))
    mine, its = Sparsemax()(ours, axis=axis), entmax.sparsemax(theirs, dim=axis % 3)
    np.testing.assert_allclose(mine.detach(), its.detach(), atol=1e-14)
    (mine * direction).sum().backward()
    (its * direction).sum().backward()
    np.testing.assert_allclose(ours.grad, theirs.grad, atol=1e-13)
    assert (mine == 0).any()


def test_is_the_nearest_point_of_the_simplex(rng):
    """No other point is nearer: a step towards any corner moves away."""
    logits = rng.normal(size=(50, 6))
    weights = Sparsemax()(logits)
    distance = ((weights - logits) ** 2).sum(-1)
    for corner in np.eye(6):
        step = 0.999 * weights + 0.001 * corner
        assert (((step - logits) ** 2).sum(-1) >= distance - 1e-15).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once(rng, dtype):
    logits = torch.tensor(rng.normal(size=(20, 50))).to(dtype)
    exact = entmax.sparsemax(logits.double(), dim=1)
    error = (Sparsemax()(logits).double() - exact).abs()
    assert (error <= exact * torch.finfo(dtype).eps / 2 * 1.01 + 20 * 2**-24).all()


def test_ties_at_the_edge_of_the_support():
    """An item exactly 1 below the top has weight 0, and the gradient is that of those inside."""
    leaf = torch.tensor([[2.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    weights = Sparsemax()(leaf)
    np.testing.assert_allclose(weights.detach(), [[1, 0, 0], [1 / 3] * 3], atol=1e-15)
    weights[:, 0].sum().backward()
    np.testing.assert_allclose(leaf.grad, [[0, 0, 0], [2 / 3, -1 / 3, -1 / 3]], atol=1e-15)


def test_is_entmax_at_2(rng):
    logits = rng.normal(size=(4, 9))
    assert (Entmax(alpha=2.0)(logits) == Sparsemax()(logits)).all()
    by_root = Entmax(alpha=np.full((4, 1), 2.0))(logits)
    np.testing.assert_allclose(by_root, Sparsemax()(logits), atol=1e-14)
