"""adaptive_temperature_softmax: the published function, on every library, masked and traced."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from strategies import GENERATOR, LIBRARY


def figure_4(logits: np.ndarray) -> np.ndarray:
    """The paper's code, line by line, in float64 NumPy."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=-1, keepdims=True)
    entropy = np.sum(-probabilities * np.log(probabilities + 1e-9), axis=-1, keepdims=True)
    fitted = np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], entropy)
    beta = np.where(entropy > 0.5, np.maximum(fitted, 1.0), 1.0)
    sharper = np.exp(beta * (logits - logits.max(axis=-1, keepdims=True)))
    return sharper / sharper.sum(axis=-1, keepdims=True)


@given(
    library=LIBRARY,
    rng=GENERATOR,
    dtype=st.sampled_from(["float32", "float64"]),
    items=st.sampled_from([1, 2, 3, 17, 255, 4096]),
    scale=st.sampled_from([0.01, 0.1, 1.0, 10.0, 100.0]),
)
@settings(max_examples=80)
def test_equals_figure_4(library, rng, dtype, items, scale):
    if library.name == "jax":
        items = 17
    logits = (rng.normal(size=(8, items)) * scale).astype(dtype)
    ours = sx.adaptive_temperature_softmax(library.array(logits, dtype))
    np.testing.assert_allclose(
        library.numpy(ours), figure_4(logits.astype(np.float64)), atol=1e-5, rtol=0
    )


def test_the_comparison_with_figure_4_can_fail(rng):
    """Were the coefficients read in ascending order, a known mistake of ports, it would be seen."""
    logits = rng.normal(size=(8, 64))
    backwards = sx.Polynomial(sx.PAPER.coefficients[::-1])
    wrong = sx.adaptive_temperature_softmax(logits, policy=backwards)
    assert np.abs(wrong - figure_4(logits)).max() > 1e-2


def test_never_raises_the_entropy(quick: Library, rng):
    logits = rng.normal(size=(40, 50)) * rng.uniform(0, 5, size=(40, 1))
    weights = quick.numpy(sx.adaptive_temperature_softmax(quick.array(logits)))
    before = sx.entropy(logits)
    after = np.sum(
        np.where(weights > 0, -weights * np.log(np.where(weights > 0, weights, 1)), 0), -1
    )
    assert (after <= before + 1e-12).all()
    assert (after < before - 0.1).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constant_one_is_softmax_to_the_bit(quick: Library, rng, dtype):
    logits = quick.array(rng.normal(size=(5, 40)) * 3, dtype)
    plain = quick.numpy(sx.softmax(logits))
    ours = quick.numpy(sx.adaptive_temperature_softmax(logits, policy=sx.Constant(1.0)))
    assert (ours == plain).all()
    low_entropy = quick.array(np.array([[50.0, 0.0, 0.0]]), dtype)  # PAPER leaves it alone
    adaptive = quick.numpy(sx.adaptive_temperature_softmax(low_entropy))
    assert (adaptive == quick.numpy(sx.softmax(low_entropy))).all()


def test_the_count_is_what_a_row_can_see(quick: Library, rng):
    """Masked, -inf and missing items are the same to a policy of the length."""
    logits = rng.normal(size=(1, 12))
    where = np.arange(12)[None] < 5
    policy = sx.LogLength(3)
    short = quick.numpy(sx.adaptive_temperature_softmax(quick.array(logits[:, :5]), policy=policy))
    masked = sx.adaptive_temperature_softmax(
        quick.array(logits), policy=policy, where=quick.array(where, "bool")
    )
    additive = quick.array(np.where(where, logits, -np.inf))
    hidden = sx.adaptive_temperature_softmax(additive, policy=policy)
    np.testing.assert_allclose(quick.numpy(masked)[:, :5], short, rtol=1e-12)
    np.testing.assert_allclose(quick.numpy(hidden)[:, :5], short, rtol=1e-12)


def test_a_policy_may_be_any_function(rng):
    logits = rng.normal(size=(2, 6))
    doubled = sx.adaptive_temperature_softmax(logits, policy=lambda entropy, count: 2.0)
    np.testing.assert_allclose(doubled, sx.softmax(logits, temperature=0.5), rtol=1e-12)


def test_rows_are_independent_of_their_batch(quick: Library, rng):
    logits = rng.normal(size=(6, 33))
    together = quick.numpy(sx.adaptive_temperature_softmax(quick.array(logits)))
    for row, weights in zip(logits, together, strict=True):
        np.testing.assert_allclose(
            quick.numpy(sx.adaptive_temperature_softmax(quick.array(row))), weights, rtol=1e-12
        )


SATURATING = sx.Saturating(sx.PAPER)  # made outside: it finds its peak once, with NumPy


def everything(logits, where):
    state = sx.SoftmaxState.of(logits, where).merge(sx.SoftmaxState.of(logits * 2))
    return (
        sx.softmax(logits, where=where, temperature=0.5),
        sx.entropy(logits, where=where),
        sx.adaptive_temperature_softmax(logits, where=where, policy=SATURATING),
        sx.adaptive_temperature_softmax(logits, policy=sx.LogLength(4)),
        state.log_sum_exp,
        state.entropy,
        state.max_weight,
        state.effective_items,
    )


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: jax.jit(jax.vmap(f))], ids=["jit", "vmap"])
def test_works_under_jax_transformations(rng, wrap):
    logits, where = rng.normal(size=(5, 9)), rng.random((5, 9)) < 0.7
    plain = everything(jax.numpy.asarray(logits), jax.numpy.asarray(where))
    traced = wrap(everything)(jax.numpy.asarray(logits), jax.numpy.asarray(where))
    for ours, theirs in zip(traced, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_works_under_torch_compile_in_one_graph(rng):
    logits, where = torch.tensor(rng.normal(size=(5, 9))), torch.tensor(rng.random((5, 9)) < 0.7)
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(logits, where), everything(logits, where), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_mask_of_the_smallest_number_does_not_overflow(quick: Library, rng):
    """Some libraries mask with finfo.min; sharpening must not push that to -inf times zero."""
    logits = rng.normal(size=(3, 8)).astype(np.float32)
    masked = logits.copy()
    masked[:, 5:] = np.finfo(np.float32).min
    ours = quick.numpy(sx.adaptive_temperature_softmax(quick.array(masked, "float32")))
    short = quick.numpy(sx.adaptive_temperature_softmax(quick.array(logits[:, :5], "float32")))
    np.testing.assert_allclose(ours[:, :5], short, rtol=1e-6)
    assert (ours[:, 5:] == 0).all()
