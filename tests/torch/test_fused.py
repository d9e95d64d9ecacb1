"""Without sharpening it is torch's own attention, and a policy without entropy costs one call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import sharpmax as sx
from sharpmax.torch import fused_kernels, scaled_dot_product_attention

PLAIN = sx.Constant(1.0)
OFF = sx.Polynomial((0.0,), threshold=0.0)  # looks at the entropy, answers 1


def tensors(dtype=torch.float32, kv_heads=4):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 33, 16), (2, kv_heads, 41, 16), (2, kv_heads, 41, 16))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("policy", [PLAIN, OFF])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_fused_is_bit_for_bit_torch_s(policy, causal, kv_heads):
    query, key, value = tensors(kv_heads=kv_heads)
    ours = scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=True, policy=policy, impl="fused"
    )
    torchs = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    assert torch.equal(ours, torchs)


@pytest.mark.parametrize("impl", ["reference", "streaming", "fused"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.1}, {"mask": True}])
def test_every_implementation_is_torch_s(impl, dtype, options):
    query, key, value = tensors(dtype)
    if "mask" in options:
        mask = torch.rand(33, 41, generator=torch.Generator().manual_seed(1)) < 0.7
        options = {"attn_mask": mask}
    ours = scaled_dot_product_attention(query, key, value, policy=PLAIN, impl=impl, **options)
    torchs = F.scaled_dot_product_attention(query, key, value, **options)
    if dtype != torch.bfloat16:
        torch.testing.assert_close(ours, torchs)
        return
    # Where torch rounds on the way, ours is not further from the truth.
    exact = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), **options)
    assert (ours - exact).abs().max() <= (torchs - exact).abs().max()


@pytest.mark.parametrize(
    ("policy", "calls"),
    [
        (PLAIN, 1),
        (sx.LogLength(4), 1),
        (sx.Saturating(sx.LogLength(4)), 1),
        (sx.PAPER, 2),
        (sx.Saturating(sx.PAPER), 2),
        (lambda entropy, count: 1 + 0 * entropy, 2),
    ],
)
def test_calls_of_the_kernel(monkeypatch, policy, calls):
    made = []
    run = fused_kernels.run
    monkeypatch.setattr(fused_kernels, "run", lambda *args: made.append(1) or run(*args))
    scaled_dot_product_attention(*tensors(), policy=policy, impl="fused")
    assert len(made) == calls


@pytest.mark.parametrize("impl", ["reference", "streaming", "fused"])
def test_a_policy_that_looks_at_the_count_sees_the_visible_keys(impl):
    query, key, value = tensors(torch.float64)
    ours = scaled_dot_product_attention(
        query, key, value, is_causal=True, policy=sx.LogLength(4), impl=impl
    )
    seen = torch.arange(1, 34, dtype=torch.float64).clamp(max=41)
    factor = (seen.log() / torch.tensor(4.0).double().log()).clamp(min=1)
    torchs = F.scaled_dot_product_attention(query * factor[:, None], key, value, is_causal=True)
    torch.testing.assert_close(ours, torchs)
