"""Gradients are those of finite differences, through the inverse temperature too."""

from __future__ import annotations

import pytest
import torch

import sharpmax as sx
from sharpmax.torch import attention, attention_stats, blockwise, scaled_dot_product_attention

IMPLEMENTATIONS = ("reference", "streaming", "fused")
SHARPENING = sx.Polynomial((0.1, 0.3, 0.9), threshold=0.2)  # smooth wherever entropies lie here


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    monkeypatch.setattr(blockwise, "MAX_LOGITS", 40)
    monkeypatch.setattr(blockwise, "MAX_ROWS", 2)


def leaves(*shapes):
    generator = torch.Generator().manual_seed(2)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    )


def qkv(queries=5, keys=6, kv_heads=1):
    return leaves((1, 2, queries, 3), (1, kv_heads, keys, 3), (1, kv_heads, keys, 3))


def masks():
    mask = torch.rand(5, 6, generator=torch.Generator().manual_seed(5)) < 0.6
    mask[2] = False
    return {"none": None, "rows": mask, "padding": mask[:1]}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "rows", "padding"])
def test_output(impl, causal, mask):
    def attend(query, key, value):
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=masks()[mask],
            is_causal=causal,
            enable_gqa=True,
            policy=SHARPENING,
            impl=impl,
        )

    assert torch.autograd.gradcheck(attend, qkv())


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_statistics(impl, causal):
    """All of them: a penalty on entropy, or on the log-sum-exp, trains the model."""

    def measure(query, key):
        stats = attention_stats(
            query, key, is_causal=causal, enable_gqa=True, policy=SHARPENING, impl=impl
        )
        return (
            stats.entropy,
            stats.log_sum_exp,
            stats.inverse_temperature,
            stats.max_logit,
            stats.min_logit,
            stats.max_weight,
        )

    assert torch.autograd.gradcheck(measure, qkv()[:2])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_output_and_statistics_together(impl):
    def attend(query, key, value):
        output, stats = attention(
            query, key, value, attn_mask=masks()["rows"], enable_gqa=True, impl=impl
        )
        return output, stats.entropy, torch.where(stats.count > 0, stats.log_sum_exp, 0.0)

    assert torch.autograd.gradcheck(attend, qkv())


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_softcap_bias_and_sinks(impl):
    query, key, value = qkv()
    bias, sinks = leaves((2, 5, 6), (2,))

    def attend(query, key, value, bias, sinks):
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            is_causal=True,
            enable_gqa=True,
            softcap=2.0,
            sinks=sinks,
            policy=SHARPENING,
            impl=impl,
        )

    assert torch.autograd.gradcheck(attend, (query, key, value, bias, sinks))


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_a_bias_of_minus_infinity_is_a_mask(impl):
    """Through the inverse temperature too, where minus infinity would meet a zero."""
    gradients = []
    for mask in (masks()["rows"], torch.zeros(5, 6).masked_fill(~masks()["rows"], -torch.inf)):
        tensors = qkv()
        options = {"attn_mask": mask, "enable_gqa": True, "policy": SHARPENING, "impl": impl}
        output = scaled_dot_product_attention(*tensors, **options)
        gradients.append(torch.autograd.grad(output.square().sum(), tensors))
    for boolean, additive in zip(*gradients, strict=True):
        torch.testing.assert_close(boolean, additive)


@pytest.mark.parametrize("impl", ["reference", "streaming"])
def test_second_derivatives(impl):
    def attend(query, key, value):
        return scaled_dot_product_attention(
            query, key, value, enable_gqa=True, policy=SHARPENING, impl=impl
        )

    assert torch.autograd.gradgradcheck(attend, qkv(3, 4))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("rest", [False, True])
def test_a_policy_may_be_learned(impl, rest):
    """A parameter inside the policy gets its gradient, also where nothing else needs one."""
    tensors = [tensor.detach().requires_grad_(rest) for tensor in qkv()]

    def attend(slope):
        return scaled_dot_product_attention(
            *tensors,
            enable_gqa=True,
            policy=lambda entropy, count: 1 + slope * entropy,
            impl=impl,
        )

    assert torch.autograd.gradcheck(attend, leaves(()))
