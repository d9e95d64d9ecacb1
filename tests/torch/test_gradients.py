"""Gradients are those of finite differences, through the inverse temperature too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
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
from sharpmax.cpu import blockwise
from sharpmax.cpu import gradients as cpu_gradients
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
    others = stats.inverse_temperature, stats.max_weight, stats.spread, stats.varentropy
    return output, stats.entropy, total, *others


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


@pytest.mark.parametrize("threads", [1, 3])
@settings(max_examples=60)
@given(data=st.data())
def test_gradients_of_the_cpu_kernel_are_those_of_the_reference(threads, data):
    """Of the output alone: it has none of statistics, sinks and biases."""
    call = replace(data.draw(differentiable("cpu", 12)), sinks=None).rounded(torch.float32)
    if call.bias is not None:
        call = replace(call, softcap=None)
    weight = torch.randn(call.truth.output.shape, generator=torch.Generator().manual_seed(0))

    def differentiate(impl):
        options = call.options(impl)
        tensors = [leaf.requires_grad_() for leaf in call.tensors(impl)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "get_num_threads", lambda: threads)
            output = scaled_dot_product_attention(*tensors, **options)
            return torch.autograd.grad((output * weight.to(output)).sum(), tensors)

    largest = 1 + max(float(np.abs(end[np.isfinite(end)]).max(initial=0)) for end in ends(call))
    for ours, theirs in zip(differentiate("cpu"), differentiate("reference"), strict=True):
        # Logits, and with them weights and their derivatives, are off by a few eps * largest.
        size = 1 + float(theirs.abs().max())
        tolerance = 100 * torch.finfo(torch.float32).eps * largest**2 * size
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance)


def ends(call):
    return call.truth.max_logit, call.truth.min_logit


@pytest.mark.parametrize("shape", [(2, 6, 2, 300, 520), (1, 1, 1, 700, 700)])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_the_cpu_kernel_in_blocks_of_the_usual_size(rng, shape, causal, monkeypatch):
    """Several blocks of 256 rows and tiles of 512 keys, shared key heads, parts of one head."""
    for name, usual in (("BLOCK_ROWS", 256), ("MIN_BLOCK_ROWS", 16), ("TILE", 512)):
        monkeypatch.setattr(cpu_gradients, name, usual)
        monkeypatch.setattr(blockwise, name, usual)
    batch, heads, kv_heads, queries, keys = shape
    arrays = [
        rng.normal(size=(batch, count, length, 8)) * 1.5
        for count, length in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    ]
    weight = torch.tensor(rng.normal(size=(batch, heads, queries, 8)))
    found = []
    for impl in ("cpu", "reference"):
        tensors = [tensor(array, impl).requires_grad_() for array in arrays]
        output = scaled_dot_product_attention(
            *tensors, is_causal=causal, enable_gqa=True, policy=SMOOTH, impl=impl
        )
        found.append(torch.autograd.grad((output * weight.to(output)).sum(), tensors))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5 * theirs.abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_half_precision_are_rounded_once(rng, dtype):
    arrays = [torch.tensor(rng.normal(size=(1, 2, 9, 8))).to(dtype) for _ in range(3)]
    found = []
    for kind in (dtype, torch.float32):
        tensors = [array.detach().to(kind).requires_grad_() for array in arrays]
        output = scaled_dot_product_attention(*tensors, policy=SMOOTH, impl="cpu")
        weight = torch.linspace(-1, 1, output.numel()).view_as(output).to(dtype).to(kind)
        found.append(torch.autograd.grad(output, tensors, weight))
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, theirs.to(dtype))


def test_the_cpu_kernel_has_no_second_derivative(rng):
    tensors = [tensor(rng.normal(size=(1, 1, 4, 2)), "cpu").requires_grad_() for _ in range(3)]
    output = scaled_dot_product_attention(*tensors, policy=SMOOTH, impl="cpu")
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(output.sum(), tensors[0], create_graph=True)


@pytest.mark.parametrize("where", ["hidden", "seen"])
def test_numbers_that_are_not_finite_do_not_spread_to_rows_that_do_not_see_them(rng, where):
    arrays = [tensor(rng.normal(size=(1, 1, 6, 3)), "cpu") for _ in range(3)]
    arrays[2][:, :, -1] = torch.nan
    query, key, value = (array.requires_grad_() for array in arrays)
    mask = torch.arange(6) < (5 if where == "hidden" else 6)
    output = scaled_dot_product_attention(query, key, value, mask, policy=SMOOTH, impl="cpu")
    gradients = torch.autograd.grad(output.sum(), (query, key))
    finite = [bool(gradient.isfinite().all()) for gradient in gradients]
    assert finite == [where == "hidden"] * 2


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


@pytest.mark.parametrize("impl", [*DIFFERENTIABLE, "cpu"])
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
