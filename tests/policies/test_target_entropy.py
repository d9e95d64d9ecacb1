"""TargetEntropy: the step is Newton's, the exact variant hits, every implementation agrees."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
import sharpmax.jax
import sharpmax.torch
from libraries import Library
from sharpmax import cpu
from strategies import GENERATOR, LIBRARY

TARGET = sx.TargetEntropy(1.0)
EXACT = sx.TargetEntropy(1.0, exact=True)


def literal(entropy, varentropy, nats=1.0, largest=8.0):
    if entropy <= nats or varentropy == 0:
        return 1.0
    return min(math.sqrt(1 + 2 * (entropy - nats) / varentropy), largest)


@given(
    entropy=st.floats(0, 12),
    varentropy=st.floats(0, 30) | st.sampled_from([0.0, 1e-30, 1e-300]),
    nats=st.floats(0, 8),
    largest=st.floats(1, 1e6),
    library=LIBRARY,
)
def test_is_what_it_says(entropy, varentropy, nats, largest, library):
    policy = sx.TargetEntropy(nats, largest)
    expected = literal(entropy, varentropy, nats, largest)
    assert policy(entropy, 9, varentropy) == pytest.approx(expected, rel=1e-9)
    arrays = (library.array(np.full(3, number)) for number in (entropy, 9.0, varentropy))
    np.testing.assert_allclose(library.numpy(policy(*arrays)), expected, rtol=1e-9)


def test_one_step_is_exact_for_many_normal_logits(rng):
    """H = log n - b^2 s^2 / 2 there, a straight line in b^2."""
    logits = rng.normal(size=(4, 200_000))
    target = sx.entropy(logits)[0] - 0.2
    weights = sx.adaptive_temperature_softmax(logits, policy=sx.TargetEntropy(target))
    np.testing.assert_allclose(-(weights * np.log(weights)).sum(-1), target, atol=0.01)


@given(rng=GENERATOR, scale=st.floats(0.1, 3))
def test_it_comes_closer_and_sharp_rows_stay_as_they_are(rng, scale):
    """One step may pass the target, but never ends further from it than it began."""
    logits = rng.normal(size=(5, 60)) * scale
    weights = sx.adaptive_temperature_softmax(logits, policy=TARGET)
    before = sx.entropy(logits)
    after = -np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0).sum(-1)
    sharp = before <= 1.0
    np.testing.assert_allclose(weights[sharp], sx.softmax(logits)[sharp], rtol=1e-12)
    assert (after <= before + 1e-12).all()
    assert (np.abs(after - 1) <= np.abs(before - 1) + 1e-12).all()


@given(rng=GENERATOR, nats=st.floats(0.1, 3), library=LIBRARY)
def test_the_exact_variant_hits_the_target(rng, nats, library):
    logits = rng.normal(size=(5, 17)) * 2
    policy = sx.TargetEntropy(nats, largest=1e9, exact=True)
    weights = sx.adaptive_temperature_softmax(library.array(logits), policy=policy)
    weights = library.numpy(weights)
    after = -np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0).sum(-1)
    np.testing.assert_allclose(after, np.minimum(sx.entropy(logits), nats), atol=1e-9)


def test_it_is_bounded_and_equal_logits_stay(quick: Library):
    tied = quick.array([[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    bounded = sx.TargetEntropy(0.3, largest=3.0, exact=True)
    found = quick.numpy(sx.adaptive_temperature_softmax(tied, policy=bounded))
    np.testing.assert_allclose(found, sx.softmax(3 * quick.numpy(tied)), rtol=1e-6)
    step = quick.numpy(sx.adaptive_temperature_softmax(tied, policy=sx.TargetEntropy(0.3, 3.0)))
    np.testing.assert_allclose(step[1], 0.25)


@pytest.mark.parametrize("policy", [TARGET, EXACT])
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("impl", ["reference", "streaming", "cpu", "auto", "numpy", "jax"])
def test_every_implementation_does_the_same(rng, impl, policy, by_head):
    arrays = [rng.normal(size=(1, 2, 40, 8)).astype(np.float32) * 2 for _ in range(3)]
    wide = [torch.tensor(array, dtype=torch.float64) for array in arrays]
    expected = sharpmax.torch.attention(*wide, is_causal=True, policy=policy, impl="reference")
    if by_head:  # from Python, not as numbers of the kernel
        policy = Wrapped(policy)
    if impl in ("cpu", "numpy") and policy.needs_rows:
        with pytest.raises(NotImplementedError, match="whole rows of logits"):
            run(impl, arrays, policy)
        return
    output, stats = run(impl, arrays, policy)
    np.testing.assert_allclose(output, expected.output, atol=2e-4)
    np.testing.assert_allclose(
        stats.inverse_temperature, expected.stats.inverse_temperature, rtol=2e-4
    )
    assert (expected.stats.inverse_temperature > 1).any()


class Wrapped:
    """The same policy as a user might write it."""

    needs_varentropy = True
    learned = True

    def __init__(self, policy):
        self.policy, self.needs_rows = policy, policy.needs_rows

    def __call__(self, *known):
        return self.policy(*known)


def run(impl, arrays, policy):
    if impl == "numpy":
        return cpu.attention(*arrays, is_causal=True, policy=policy)
    if impl == "jax":
        rows_first = [jnp.asarray(array.swapaxes(1, 2)) for array in arrays]
        output, stats = sharpmax.jax.attention(*rows_first, is_causal=True, policy=policy)
        stats = jax.tree.map(lambda array: array.swapaxes(1, 2), stats)
        return output.swapaxes(1, 2), stats
    tensors = map(torch.tensor, arrays)
    return sharpmax.torch.attention(*tensors, is_causal=True, policy=policy, impl=impl)


@pytest.mark.parametrize("policy", [TARGET, EXACT])
@pytest.mark.parametrize("impl", ["reference", "streaming", "auto"])
def test_gradients_are_those_of_finite_differences(rng, impl, policy):
    tensors = [
        torch.tensor(rng.normal(size=(1, 1, 6, 3)), requires_grad=True, dtype=torch.float64)
        for _ in range(3)
    ]
    attend = functools.partial(
        sharpmax.torch.scaled_dot_product_attention, is_causal=True, policy=policy, impl=impl
    )
    assert torch.autograd.gradcheck(attend, tensors)


@pytest.mark.parametrize("policy", [TARGET, EXACT])
def test_jax_gradients_are_those_of_torch(rng, policy):
    logits = rng.normal(size=(3, 9))
    ours = jax.grad(lambda x: (sx.adaptive_temperature_softmax(x, policy=policy) ** 2).sum())(
        jnp.asarray(logits)
    )
    tensor = torch.tensor(logits, requires_grad=True)
    (sx.adaptive_temperature_softmax(tensor, policy=policy) ** 2).sum().backward()
    np.testing.assert_allclose(ours, tensor.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("impl", ["fused", "cpu"])
def test_what_an_implementation_cannot_do_is_refused_by_name(impl):
    query = torch.randn(1, 1, 5, 4, requires_grad=True)
    with pytest.raises(NotImplementedError, match=f'impl="{impl}".*varentropy'):
        sharpmax.torch.attention(query, query, query, policy=TARGET, impl=impl)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0,), "nats must be an entropy, at least 0, got -1.0"),
        ((math.nan,), "nats must be an entropy"),
        (("3",), "nats must be an entropy"),
        ((3.0, 0.5), "largest must be a finite number from 1 up, got 0.5"),
        ((3.0, math.inf), "largest must be a finite number"),
    ],
)
def test_wrong_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sx.TargetEntropy(*arguments)


def test_without_the_varentropy_it_says_what_it_takes():
    with pytest.raises(TypeError, match=r"takes \(entropy, count, varentropy\)"):
        TARGET(2.0, 10)
