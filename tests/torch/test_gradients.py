"""Gradients are those of finite differences, through the inverse temperature too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from attention_cases import (
    DIFFERENTIABLE,
    SMOOTH,
    TRITON,
    calls,
    policy_for_tensors,
    small_blocks,  # noqa: F401  # a fixture
    tensor,
    widest,
)
from sharpmax.torch import attention, scaled_dot_product_attention

POLICIES = (SMOOTH, policy_for_tensors, sx.LogLength(2), sx.Constant(1.5))


def differentiable(impl, longest):
    """Calls whose policies are smooth and whose biases are finite.

    `fused` has no gradients with sinks. Softcap keeps logits small enough for finite differences.
    """

    def smooth(call, policy):
        bias = None if call.bias is None else call.bias.clip(-2.0)
        sinks = None if impl == "fused" else call.sinks
        query = call.query / 3
        return replace(call, query=query, bias=bias, sinks=sinks, policy=policy)

    return st.builds(smooth, calls(impl, longest), st.sampled_from(POLICIES))


def leaves(call, impl):
    """Query, key, value, and whatever else there is to differentiate; how to attend to them."""
    options = call.options(impl)
    tensors = call.tensors(impl)
    names = [
        name
        for name in ("attn_mask", "sinks")
        if options[name] is not None and options[name].is_floating_point()
    ]
    extra = [options.pop(name) for name in names]

    def attend(query, key, value, *rest):
        return attention(query, key, value, **options, **dict(zip(names, rest, strict=True)))

    return [leaf.requires_grad_() for leaf in (*tensors, *extra)], attend


def everything(answer):
    """All that has a gradient; a row without keys has a constant log-sum-exp of -inf."""
    output, stats = answer
    total = torch.where(stats.count > 0, stats.log_sum_exp, 0.0)
    return output, stats.entropy, total, stats.inverse_temperature, stats.max_weight, stats.spread


def gradients(call, impl):
    tensors, attend = leaves(call, impl)
    generator = torch.Generator().manual_seed(0)
    loss = 0.0
    for numbers in everything(attend(*tensors)):
        weight = torch.randn(numbers.shape, generator=generator, dtype=torch.float64)
        loss = loss + (numbers * weight.to(numbers)).sum()
    return torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)


@settings(max_examples=12)
@given(data=st.data())
def test_the_reference_has_those_of_finite_differences(data):
    tensors, attend = leaves(data.draw(differentiable("reference", 4)), "reference")
    assert torch.autograd.gradcheck(lambda *given: everything(attend(*given)), tensors)


@pytest.mark.parametrize("impl", ["streaming", "fused", TRITON])
@settings(max_examples=30)
@given(data=st.data())
def test_gradients_are_those_of_the_reference(impl, data):
    call = data.draw(differentiable(impl, 9))
    # Sums of a hundred products of numbers up to 10, in the widest type.
    tolerance = 1e5 * torch.finfo(widest(impl)).eps
    expected = gradients(call, "reference")
    for ours, theirs in zip(gradients(call, impl), expected, strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("impl", ["streaming", "fused"])
def test_finite_differences(impl):
    """One call with everything that an implementation differentiates."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((1, 2, 5, 3), (1, 1, 6, 3), (1, 1, 6, 3), (2, 5, 6), (2,))
    tensors = [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes[: 3 if impl == "fused" else 5]
    ]
    options = {"is_causal": True, "enable_gqa": True, "policy": SMOOTH, "impl": impl}

    def attend(query, key, value, bias=None, sinks=None):
        softcap = None if impl == "fused" else 2.0
        return everything(
            attention(query, key, value, attn_mask=bias, sinks=sinks, softcap=softcap, **options)
        )

    assert torch.autograd.gradcheck(attend, tensors, fast_mode=True)


@pytest.mark.parametrize("impl", ["reference", "streaming", TRITON])
def test_a_bias_of_minus_infinity_is_a_mask(rng, impl):
    """Through the inverse temperature too, where minus infinity would meet a zero."""
    visible = tensor(rng.random((5, 6)) < 0.6, impl, torch.bool)
    visible[2] = False
    bias = torch.zeros_like(visible, dtype=widest(impl)).masked_fill(~visible, -torch.inf)
    arrays = [rng.normal(size=(1, 2, n, 3)) for n in (5, 6, 6)]
    found = []
    for mask in (visible, bias):
        tensors = [tensor(array, impl).requires_grad_() for array in arrays]
        output = scaled_dot_product_attention(*tensors, attn_mask=mask, policy=SMOOTH, impl=impl)
        found.append(torch.autograd.grad(output.square().sum(), tensors))
    for boolean, additive in zip(*found, strict=True):
        assert boolean.isfinite().all()
        torch.testing.assert_close(boolean, additive)


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_second_derivatives(rng, impl):
    tensors = [tensor(rng.normal(size=(1, 1, n, 2)), impl).requires_grad_() for n in (2, 3, 3)]

    def attend(*given):
        return scaled_dot_product_attention(*given, policy=SMOOTH, impl=impl)

    assert torch.autograd.gradgradcheck(attend, tensors)


@pytest.mark.parametrize("impl", DIFFERENTIABLE)
@pytest.mark.parametrize("rest", [False, True])
def test_a_policy_may_be_learned(rng, impl, rest):
    """A parameter inside the policy gets its gradient, also where nothing else needs one."""
    arrays = [rng.normal(size=(1, 2, n, 3)) for n in (5, 6, 6)]
    tensors = [tensor(array, impl).requires_grad_(rest) for array in arrays]
    found = []
    for name in ("reference", impl):
        slope = tensor(0.3, impl).requires_grad_()
        output = scaled_dot_product_attention(
            *tensors, policy=lambda entropy, count, slope=slope: 1 + slope * entropy, impl=name
        )
        found.append(torch.autograd.grad(output.square().sum(), slope)[0])
    assert found[0] != 0
    tolerance = 1e5 * torch.finfo(widest(impl)).eps
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)
