"""A policy of the length alone is torch's own kernel on a scaled query, and costs nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from attention_cases import calls
from sharpmax.torch import attention, counts, scaled_dot_product_attention, sdpa


@dataclass(frozen=True)
class ByHead:
    """A policy that differs by head."""

    by_head: ClassVar[bool] = True
    needs_entropy: ClassVar[bool] = False
    learned: ClassVar[bool] = False

    def __call__(self, entropy, count, /):
        heads = entropy.shape[1] * entropy.shape[2]
        head = torch.arange(heads).view(*entropy.shape[1:3], 1)
        return 1 + 0.1 * (head + 1) * count.to(entropy.dtype).log()


def tensors(dtype=torch.float64, queries=33, keys=41, heads=4, kv_heads=4):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, heads, queries, 16), (2, kv_heads, keys, 16), (2, kv_heads, keys, 16))
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]


@pytest.fixture
def kernel(monkeypatch):
    """What torch's function was called with."""
    made = []
    run = F.scaled_dot_product_attention

    def spy(*args, **options):
        made.append((*args, options))
        return run(*args, **options)

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", spy)
    return made


def attend(call, dtype, impl="sdpa"):
    return scaled_dot_product_attention(*call.tensors(impl, dtype), **call.options(impl, dtype))


@given(data=st.data())
def test_equals_attention_to_the_visible_keys(data):
    """Within what `attention_cases.assert_right` derives."""
    call = data.draw(calls("sdpa"))
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32]))
    call = call.rounded(dtype)
    output = attend(call, dtype)
    expected = call.truth
    finite = expected.count > 0
    ends = (expected.max_logit, expected.min_logit)
    largest = 1 + max((np.abs(end[finite]).max(initial=0.0) for end in ends), default=0.0)
    tolerance = 44 * torch.finfo(dtype).eps * largest**2 * np.abs(call.value).max()
    assert output.dtype == dtype
    np.testing.assert_allclose(output.double(), expected.output, rtol=0, atol=tolerance)


@given(data=st.data())
def test_gradients_are_those_of_the_reference(data):
    call = data.draw(calls("sdpa", longest=9))
    found = []
    for impl in ("reference", "sdpa"):
        leaves = [leaf.requires_grad_() for leaf in call.tensors(impl)]
        output = scaled_dot_product_attention(*leaves, **call.options(impl))
        weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
        found.append(torch.autograd.grad((output * weight).sum(), leaves))
    # Sums of a hundred products of numbers up to 10, as in test_gradients.
    tolerance = 1e5 * torch.finfo(torch.float64).eps
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("policy", [sx.LogLength(4), sx.Constant(1.3), ByHead()])
def test_half_precision_is_as_exact_as_torch_s(dtype, policy):
    """Where the query is scaled it is rounded once more, as it was before."""
    query, key, value = tensors(dtype)
    wide = [tensor.double() for tensor in (query, key, value)]
    ours = scaled_dot_product_attention(query, key, value, policy=policy, is_causal=True)
    truth = scaled_dot_product_attention(*wide, policy=policy, is_causal=True, impl="reference")
    plain = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    error = (plain - F.scaled_dot_product_attention(*wide, is_causal=True)).abs().max()
    assert ours.dtype == dtype
    assert (ours - truth).abs().max() <= 4 * error


@pytest.mark.parametrize(
    "policy", [sx.Constant(1.0), sx.LogLength(41), sx.Saturating(sx.LogLength(50))]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_factor_of_1_everywhere_is_a_plain_call(kernel, policy, dtype, causal, kv_heads):
    query, key, value = tensors(dtype, kv_heads=kv_heads)
    options = {"is_causal": causal, "enable_gqa": kv_heads < 4}
    ours = scaled_dot_product_attention(query, key, value, policy=policy, **options)
    (called,) = kernel
    assert called[0].data_ptr() == query.data_ptr()
    assert torch.equal(ours, F.scaled_dot_product_attention(query, key, value, **options))


def test_one_factor_for_all_rows_is_part_of_the_scale(kernel):
    query, key, value = tensors()
    for policy, keys in ((sx.Constant(1.5), 41), (sx.LogLength(2), 4)):
        factor = policy(0.0, keys)
        ours = scaled_dot_product_attention(
            query, key[:, :, :keys], value[:, :, :keys], policy=policy
        )
        assert kernel[-1][0].data_ptr() == query.data_ptr()
        scaled = F.scaled_dot_product_attention(
            query * factor, key[:, :, :keys], value[:, :, :keys]
        )
        torch.testing.assert_close(ours, scaled)


@pytest.mark.parametrize("queries", [1, 33])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_policy_may_differ_by_head(queries, causal, kv_heads):
    given = tensors(queries=queries, kv_heads=kv_heads)
    options = {"is_causal": causal, "enable_gqa": True, "policy": ByHead()}
    ours = scaled_dot_product_attention(*given, **options, impl="sdpa")
    theirs = scaled_dot_product_attention(*given, **options, impl="reference")
    torch.testing.assert_close(ours, theirs)


def test_a_policy_is_asked_once_for_the_same_lengths(monkeypatch):
    asked = []
    ask = counts._ask
    monkeypatch.setattr(counts, "_ask", lambda *args: asked.append(1) or ask(*args))
    policy = sx.LogLength(3.125)
    for _ in range(3):
        scaled_dot_product_attention(*tensors(), policy=policy, is_causal=True)
    assert len(asked) == 1
    scaled_dot_product_attention(*tensors(keys=40), policy=policy, is_causal=True)
    assert len(asked) == 2


def test_a_policy_that_cannot_be_hashed_is_asked_each_time():
    @dataclass
    class Slope:
        needs_entropy: ClassVar[bool] = False
        learned: ClassVar[bool] = False
        slope: float = 0.1

        def __call__(self, entropy, count, /):
            return 1 + self.slope * count

    policy = Slope()
    for policy.slope in (0.1, 0.2):
        found = [
            scaled_dot_product_attention(*tensors(), policy=policy, is_causal=True, impl=impl)
            for impl in ("sdpa", "reference")
        ]
        torch.testing.assert_close(*found)


def test_what_inference_mode_remembers_serves_training():
    policy = sx.LogLength(3.25)
    with torch.inference_mode():
        scaled_dot_product_attention(*tensors(), policy=policy, is_causal=True)
    leaves = [tensor.requires_grad_() for tensor in tensors()]
    scaled_dot_product_attention(*leaves, policy=policy, is_causal=True).sum().backward()
    assert all(leaf.grad.abs().sum() > 0 for leaf in leaves)


@pytest.mark.parametrize("mask", [None, torch.ones(41, dtype=torch.bool)])
def test_a_learned_policy_has_a_gradient(mask):
    class Slope(torch.nn.Module):
        needs_entropy = False

        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

        def forward(self, entropy, count):
            return 1 + self.slope * count.log()

    found = []
    for impl in ("sdpa", "reference"):
        policy = Slope()
        options = {"policy": policy, "is_causal": True, "impl": impl}
        output = scaled_dot_product_attention(*tensors(), mask, **options)
        output.square().sum().backward()
        found.append(policy.slope.grad)
    assert found[0] != 0
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("keys", [9, 41])
@pytest.mark.parametrize(("which", "number"), [(1, torch.nan), (2, torch.nan), (2, torch.inf)])
def test_numbers_that_are_not_finite_stay_in_their_rows(keys, which, number):
    """In a key or a value that some rows see."""
    mask = torch.ones(33, keys, dtype=torch.bool)
    mask[:20, 5] = False
    given = tensors(keys=keys)
    given[which][:, :, 5, 2] = number
    options = {"attn_mask": mask, "policy": sx.LogLength(3)}
    ours = scaled_dot_product_attention(*given, **options, impl="sdpa")
    theirs = scaled_dot_product_attention(*given, **options, impl="reference")
    assert ours[:, :, :20].isfinite().all()
    assert (~ours[:, :, 20:].isfinite()).any(-1).all()
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"policy": sx.PAPER}, "a policy that looks at the entropy (Polynomial"),
        ({"softcap": 5.0}, "softcap=5.0"),
        ({"window": 3}, "window=3"),
        ({"attn_mask": torch.zeros(33, 41)}, "an additive attn_mask"),
        ({"sinks": torch.zeros(4)}, "sinks"),
        ({"scale": -0.5}, "scale=-0.5"),
        ({"dropout_p": 0.1}, "these tensors"),
    ],
)
def test_what_it_does_not_support_is_refused_by_name(options, name):
    given = {"policy": sx.Constant(1.5)} | options
    query, key, value = tensors(torch.float32)
    with pytest.raises(NotImplementedError) as caught:
        scaled_dot_product_attention(query, key, value, **given, impl="sdpa")
    assert name in str(caught.value)
    scaled_dot_product_attention(query, key, value, **given)


def test_statistics_are_refused():
    with pytest.raises(NotImplementedError, match="does not support statistics"):
        attention(*tensors(), policy=sx.Constant(1.5), impl="sdpa")


def test_under_torch_compile():
    compiled = torch.compile(scaled_dot_product_attention, backend="eager")
    for policy in (sx.LogLength(4), sx.Constant(1.5), sx.Constant(1.0), ByHead()):
        plain = scaled_dot_product_attention(*tensors(), policy=policy, is_causal=True)
        found = compiled(*tensors(), policy=policy, is_causal=True)
        torch.testing.assert_close(found, plain)
