"""Alpha-entmax: the `entmax` package's answer, its limits, and the gradient in alpha."""

from __future__ import annotations

import entmax
import numpy as np
import pytest
import torch

import sharpmax as sx
from libraries import Library
from normalisers.slow import by_row
from normalisers.slow import entmax as slow
from sharpmax.normalisers import Entmax, _power


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("alpha", [1.5, 1.1, 1.3, 1.8])
def test_agrees_with_the_entmax_package(rng, alpha, axis):
    logits = rng.normal(size=(5, 9, 7)) * np.array([0.1, 0.5, 1, 2, 8])[:, None, None]
    direction = torch.tensor(rng.normal(size=logits.shape))
    ours, theirs = (torch.tensor(logits, requires_grad=True) for _ in range(2))
    mine = Entmax(alpha)(ours, axis=axis)
    if alpha == 1.5:
        its = entmax.entmax15(theirs, dim=axis % 3)
    else:
        its = entmax.entmax_bisect(theirs, alpha, dim=axis % 3, n_iter=60)
    np.testing.assert_allclose(mine.detach(), its.detach(), atol=1e-14)
    (mine * direction).sum().backward()
    (its * direction).sum().backward()
    np.testing.assert_allclose(ours.grad, theirs.grad, atol=1e-12)
    assert (mine == 0).any()


def test_the_gradient_in_alpha_is_the_package_s(rng):
    logits, direction = (torch.tensor(rng.normal(size=(6, 12))) for _ in range(2))
    start = torch.tensor([[1.05], [1.3], [1.5], [1.7], [1.9], [2.5]], dtype=torch.float64)
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    (Entmax(ours)(logits) * direction).sum().backward()
    (entmax.entmax_bisect(logits, theirs, dim=1, n_iter=60) * direction).sum().backward()
    np.testing.assert_allclose(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-9, 1.001, 1.2, 1.5, 2.0, 3.0])
def test_the_gradient_in_alpha_is_that_of_finite_differences(rng, alpha):
    """Down to softmax itself, where the slope is a limit."""
    logits = torch.tensor(rng.normal(size=(3, 8)))
    leaf = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
    found = torch.autograd.functional.jacobian(lambda a: Entmax(a)(logits), leaf)
    found = found.sum((2, 3)).numpy()
    step = 1e-6
    if alpha < 1 + step:  # one-sided, corrected to second order: nothing lies below 1
        at = [Entmax(leaf.detach() + k * step)(logits).numpy() for k in range(3)]
        differences = (-3 * at[0] + 4 * at[1] - at[2]) / (2 * step)
    else:
        up, down = (Entmax(leaf.detach() + sign * step)(logits).numpy() for sign in (1, -1))
        differences = (up - down) / (2 * step)
    # Weights good to 1e-16 over a step of 1e-6.
    np.testing.assert_allclose(found, differences, atol=2e-9)
    assert np.abs(found).max() > 1e-2


@pytest.mark.parametrize("alpha", [1.01, 1.25, 1.75, 2.5, 4.0])
def test_any_alpha_on_every_library(quick: Library, rng, alpha):
    logits, where = rng.normal(size=(5, 9)) * 3, rng.random((5, 9)) < 0.7
    ours = Entmax(alpha)(quick.array(logits), where=quick.array(where, "bool"))
    expected = by_row(lambda row: slow(row, alpha), logits, where)
    # The slow threshold is good to 1e-15 of a number near 1, and a power of 1/(alpha - 1) follows;
    # above alpha = 2 that power is a root, steep near 0.
    tolerance = 1e-14 / (alpha - 1) if alpha < 2 else (4e-15) ** (1 / (alpha - 1))
    np.testing.assert_allclose(quick.numpy(ours), expected, rtol=0, atol=max(tolerance, 1e-13))


def test_an_alpha_a_row(quick: Library, rng):
    logits = rng.normal(size=(3, 7))
    together = quick.numpy(Entmax(quick.array([[1.0], [1.5], [2.0]]))(quick.array(logits)))
    for row, alpha, weights in zip(logits, (1.0, 1.5, 2.0), together, strict=True):
        np.testing.assert_allclose(weights, Entmax(alpha)(row), atol=1e-14)


def test_goes_to_softmax(quick: Library, rng):
    """As alpha goes to 1, without a loss of digits on the way."""
    logits = rng.normal(size=(4, 9)) * 2
    soft = sx.softmax(logits)
    for above in (1e-3, 1e-6, 1e-9, 1e-13):
        ours = quick.numpy(Entmax(quick.array([1 + above]))(quick.array(logits)))
        # d p / d alpha is of the order of p z^2 / 2, which is below 50 here.
        np.testing.assert_allclose(ours, soft, atol=50 * above + 1e-14)
    assert (
        quick.numpy(Entmax(1)(quick.array(logits))) == quick.numpy(sx.softmax(quick.array(logits)))
    ).all()


def test_goes_to_the_largest(rng):
    """A large alpha is hard attention: stable where ties are a billionth apart."""
    logits = np.array([[0.0, -0.1, -3.0], [1.0, 1.0, 0.5], [2.0, 2.0 - 1e-9, 0.0]])
    for dtype in (np.float32, np.float64):
        ours = Entmax(40.0)(logits.astype(dtype))
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours[:2], [[1, 0, 0], [0.5, 0.5, 0]], atol=1e-6)
        np.testing.assert_allclose(ours.sum(-1), 1, atol=1e-6)


def test_a_large_alpha_of_many_ties_does_not_overflow(quick: Library):
    """1000 to the power of alpha - 1 is no float32."""
    logits = np.append(np.zeros(1000), -1.0)
    ours = quick.numpy(Entmax(40.0)(quick.array(logits, "float32")))
    np.testing.assert_allclose(ours, np.append(np.full(1000, 1e-3), 0.0), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.2, 1.5, torch.tensor([1.5])])
def test_half_precision_rounds_once(rng, dtype, alpha):
    logits = torch.tensor(rng.normal(size=(20, 50)) * 2).to(dtype)
    wide = float(alpha)
    exact = entmax.entmax_bisect(logits.double(), wide, dim=1, n_iter=60)
    weights = Entmax(alpha)(logits)
    assert weights.dtype == dtype
    error = (weights.double() - exact).abs()
    # float32 inside: a threshold off by 4 units, to the power 1/(alpha - 1) = 5 at the most.
    inside = 5 * 4 * 2**-23
    assert (error <= exact * (torch.finfo(dtype).eps / 2 * 1.01 + inside) + inside).all()


def test_needs_few_steps(rng, monkeypatch):
    """Newton's, up to alpha 2; above, the sum is infinitely steep where an item enters it, and the
    bracket does its share: at most 5 steps a halving.
    """
    calls = []
    original = _power._excess
    monkeypatch.setattr(_power, "_excess", lambda *a: calls.append(1) or original(*a))
    logits = rng.normal(size=(200, 64)) * rng.uniform(0.01, 10, size=(200, 1))
    for alpha, most in ((1.01, 8), (1.3, 12), (1.9, 15), (2.2, 20), (5.0, 100)):
        calls.clear()
        weights = Entmax(alpha)(logits)
        assert len(calls) <= most, alpha
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-13)


def test_an_alpha_below_1_spoils_its_row_only(quick: Library, rng):
    ours = quick.numpy(Entmax(quick.array([[1.2], [0.8]]))(quick.array(rng.normal(size=(2, 5)))))
    assert np.isnan(ours).all(axis=-1).tolist() == [False, True]
