"""Top-k, hard and local: softmax over fewer items, chosen by size or by place."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

import sharpmax as sx
from libraries import Library
from sharpmax.normalisers import Hard, Local, TopK


def test_of_ties_at_the_cut_the_first_are_kept(quick: Library):
    logits = quick.array([[1.0, 2.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    ours = quick.numpy(TopK(2)(logits))
    expected = quick.numpy(sx.softmax(quick.array([[2.0, 1.0]])))[0]
    np.testing.assert_allclose(ours[0], [expected[1], expected[0], 0, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(ours[1], [0.5, 0.5, 0, 0, 0], rtol=1e-14)


def test_exactly_k_are_kept_whatever_a_compiler_rounds(rng):
    """A logit computed anew must not fall out by a comparison with itself."""
    left, right = (jax.numpy.asarray(rng.normal(size=(64, 8))) for _ in range(2))

    def count(left):
        logits = jax.numpy.einsum("td,sd->ts", left, right) * 0.577
        return (TopK(3)(logits) > 0).sum(-1), (Hard()(logits) == 1).sum(-1)

    top, hard = jax.jit(count)(left)
    assert (np.asarray(top) == 3).all()
    assert (np.asarray(hard) == 1).all()


def test_enough_for_all_is_softmax(quick: Library, rng):
    logits = quick.array(rng.normal(size=(4, 9)))
    soft = quick.numpy(sx.softmax(logits))
    for normaliser in (TopK(9), TopK(100), Local(9), Local(100)):
        np.testing.assert_allclose(quick.numpy(normaliser(logits)), soft, rtol=1e-14)


def test_top_1_is_hard_and_both_are_the_limit_of_softmax(quick: Library, rng):
    logits = quick.array(rng.normal(size=(6, 9)))
    hard = quick.numpy(Hard()(logits))
    assert ((hard == 0) | (hard == 1)).all()
    assert (quick.numpy(TopK(1)(logits)) == hard).all()
    cold = quick.numpy(sx.softmax(logits, temperature=1e-5))
    np.testing.assert_allclose(cold, hard, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_hard_is_exactly_0_or_1_and_has_the_gradient_of_softmax(rng, dtype):
    logits, direction = (
        torch.tensor(rng.normal(size=(5, 8))).to(getattr(torch, dtype)) for _ in "ab"
    )
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    weights = Hard()(ours)
    many = Hard()(torch.tensor(rng.normal(size=(2000, 8))).to(logits.dtype))
    assert set(many.flatten().tolist()) == {0.0, 1.0}
    (weights * direction).sum().backward()
    (sx.softmax(theirs) * direction).sum().backward()
    assert (ours.grad == theirs.grad).all()
    assert ours.grad.abs().max() > 0.01
    traced = jax.jit(jax.grad(lambda x: (Hard()(x) * direction.numpy()).sum()))(logits.numpy())
    unit = float(torch.finfo(logits.dtype).eps)
    np.testing.assert_allclose(traced, ours.grad, rtol=8 * unit, atol=8 * unit)


def test_a_window_slides_under_a_causal_mask(quick: Library, rng):
    logits, causal = rng.normal(size=(7, 7)), np.tri(7, dtype=bool)
    ours = Local(3)(quick.array(logits), where=quick.array(causal, "bool"))
    banded = causal & ~np.tri(7, k=-3, dtype=bool)
    expected = sx.softmax(quick.array(logits), where=quick.array(banded, "bool"))
    np.testing.assert_allclose(quick.numpy(ours), quick.numpy(expected), rtol=1e-14)
