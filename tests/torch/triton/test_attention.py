"""What only the Triton kernels have: their blocks, launches, precision and refusals.

Their numbers are compared with those of the other implementations in test_implementations and
test_gradients. Without a GPU they run in Triton's interpreter, in float64; with one they are
compiled, in float32. The interpreter is slow, so most of these tests are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sharpmax as sx
from attention_cases import ON_GPU, SMOOTH, STATS, Call, assert_right, small_blocks, widest  # noqa: F401
from sharpmax.torch import (
    api,
    attention,
    attention_stats,
    fused,
    scaled_dot_product_attention,
    streaming,
)
from sharpmax.torch.interface import prepare_inputs
from sharpmax.torch.triton import attention as triton
from sharpmax.torch.triton import launch, trial
from sharpmax.torch.triton.launch import Blocks

pytest.importorskip("triton", reason="triton is not installed")

# The interpreter computes both sides of a choice; NumPy warns of the one not taken.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE, EXACT = "cuda" if ON_GPU else "cpu", widest("triton")
TOLERANCE = 1e5 * torch.finfo(EXACT).eps


@pytest.fixture
def launched(monkeypatch):
    """Names of the kernels that ran."""
    names = []
    run = launch._launch

    def spy(kernel, *rest):
        names.append(kernel.__name__)
        run(kernel, *rest)

    monkeypatch.setattr(launch, "_launch", spy)
    return names


def leaves(*shapes, dtype=EXACT):
    generator = torch.Generator().manual_seed(2)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        .to(DEVICE, dtype)
        .requires_grad_()
        for shape in shapes
    ]


def penalty(answer, weight=1.0):
    """A number that depends on the output and on all statistics."""
    output, stats = answer
    sizes = torch.arange(1, output.shape[-1] + 1, device=output.device)
    total = torch.where(stats.count > 0, stats.log_sum_exp, 0.0)
    wide = (output.to(total.dtype) * sizes).square().sum()
    return weight * wide + (stats.entropy.square() + total * stats.entropy).sum()


@pytest.mark.parametrize("mask", ["boolean", "bias"])
def test_one_call_with_every_option(rng, mask):
    """Shared heads, several blocks of rows and keys, values of another size than keys."""
    visible = rng.random((2, 19, 21)) < 0.7
    visible[:, 2] = False
    bias = np.where(visible, rng.normal(size=visible.shape), -np.inf)
    call = Call(
        query=rng.normal(size=(1, 2, 19, 3)) * 3,
        key=rng.normal(size=(1, 1, 21, 3)),
        value=rng.normal(size=(1, 1, 21, 5)),
        **({"visible": visible} if mask == "boolean" else {"bias": bias}),
        sinks=rng.normal(size=2),
        causal=True,
        window=7,
        softcap=2.0,
        policy=SMOOTH,
    )
    assert_right(call.run("triton"), call, EXACT)


def test_gradients_of_one_call_with_every_option():
    query, key, value, bias, sinks = tensors = leaves(
        (1, 2, 19, 3), (1, 1, 21, 3), (1, 1, 21, 5), (2, 19, 21), (2,)
    )
    options = {"is_causal": True, "window": 7, "softcap": 2.0, "enable_gqa": True}
    found = {}
    for impl in ("reference", "triton"):
        options |= {"attn_mask": bias, "sinks": sinks, "policy": SMOOTH, "impl": impl}
        answer = attention(query, key, value, **options)
        loss = penalty(answer) + answer.stats.max_weight.sum() + answer.stats.spread.sum()
        found[impl] = torch.autograd.grad(loss, tensors)
    for ours, theirs in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [Blocks(32, 16, 4, 1), Blocks(16, 32, 4, 1)], ids=str)
@pytest.mark.parametrize(("dim", "size"), [(3, 20), (17, 1)])
def test_any_blocks_and_head_sizes(rng, monkeypatch, blocks, dim, size):
    """Values may have another size than keys, and neither need be a power of two."""
    monkeypatch.setattr(launch, "block_choices", lambda *_: (blocks,))
    shapes = ((1, 2, 37, dim), (1, 1, 41, dim), (1, 1, 41, size))
    query, key, value = (rng.normal(size=shape) for shape in shapes)
    call = Call(query, key, value, causal=True, window=19)
    assert_right(call.run("triton"), call, EXACT)


@pytest.mark.slow
@pytest.mark.skipif(ON_GPU, reason="finite differences need float64")
def test_gradients_are_those_of_finite_differences():
    tensors = leaves((1, 1, 3, 2), (1, 1, 4, 2), (1, 1, 4, 2), (3, 4), (1,))
    options = {"softcap": 2.0, "is_causal": True, "policy": SMOOTH, "impl": "triton"}

    def measure(query, key, value, bias, sinks):
        output, stats = attention(query, key, value, attn_mask=bias, sinks=sinks, **options)
        return output, stats.entropy, stats.log_sum_exp

    assert torch.autograd.gradcheck(measure, tensors, fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_in_lower_precision(dtype):
    tensors = leaves((1, 2, 19, 8), (1, 1, 21, 8), (1, 1, 21, 8), dtype=dtype)

    def gradients(impl, tensors):
        answer = attention(*tensors, enable_gqa=True, is_causal=True, policy=SMOOTH, impl=impl)
        return torch.autograd.grad(penalty(answer, 0.1), tensors)

    exact = gradients("reference", [it.detach().double().requires_grad_() for it in tensors])
    plain, ours = gradients("reference", tensors), gradients("triton", tensors)
    for true, low, found in zip(exact, plain, ours, strict=True):
        assert found.dtype == dtype
        error = (low.double() - true).abs().max().item()
        assert (found.double() - true).abs().max().item() <= 8 * error


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_gradients_of_any_layout_in_memory(layout):
    tensors = leaves(*[(2, 2, 13, 8)] * 3)
    if layout == "transposed":  # as models lay it out: [batch, length, heads, dim]
        tensors = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]
    elif layout == "strided":
        tensors = [tensor.mT.contiguous().mT for tensor in tensors]
    else:
        tensors[1] = tensors[1][:1].expand(2, -1, -1, -1)
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    sinks = leaves((4,))[0].detach()[::2]
    found = {}
    for impl in ("reference", "triton"):
        output = scaled_dot_product_attention(*tensors, sinks=sinks, impl=impl)
        joined = output.transpose(1, 2).flatten(2)  # as in models: the gradient has gaps
        weights = torch.arange(joined.numel(), device=DEVICE).view_as(joined) / joined.numel()
        found[impl] = (output, *torch.autograd.grad((joined * weights).sum(), tensors))
    for ours, theirs in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_second_derivatives_are_refused():
    query, key, value = leaves(*[(1, 1, 3, 2)] * 3)
    output = scaled_dot_product_attention(query, key, value, impl="triton")
    (gradient,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"is_causal": True}, {"window": 3}], ids=str)
def test_blocks_that_no_row_sees_are_not_computed(options):
    """A NaN in a value that is only hidden would spoil the sum; that of a block left out cannot."""
    query, key, value = (tensor.detach() for tensor in leaves(*[(1, 1, 40, 8)] * 3))
    value[:, :, 32:] = torch.nan
    output = attention(query, key, value, impl="triton", **options).output
    assert output[:, :, :16].isfinite().all()


@pytest.mark.slow
def test_passes_that_are_not_needed_are_not_run(launched):
    query, key, value = (tensor.detach() for tensor in leaves(*[(1, 2, 5, 8)] * 3))
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE).tril(1)
    attention_stats(query, key, attn_mask=mask, impl="triton")
    assert launched == ["count", "statistics"]
    for policy in (sx.Constant(1.0), sx.LogLength(4)):
        launched.clear()
        options = {"policy": policy, "softcap": 3.0}
        found = scaled_dot_product_attention(query, key, value, impl="triton", **options)
        assert launched == ["attend"]
        expected = scaled_dot_product_attention(query, key, value, impl="reference", **options)
        torch.testing.assert_close(found, expected)


ONES = torch.ones(1, 2, 5, 8, device=DEVICE)


@pytest.mark.parametrize(
    ("options", "modules", "name"),
    [
        ({"dropout_p": 0.1}, "found", "dropout_p=0.1"),
        ({"value": torch.ones(1, 2, 5, 300)}, "found", "heads of size 300 (at most 256)"),
        (
            dict.fromkeys(("query", "key", "value"), ONES.to("meta")),
            "found",
            "meta tensors (CUDA only)",
        ),
        (
            dict.fromkeys(("query", "key", "value"), ONES.cpu()),
            "compiled",
            "cpu tensors (CUDA only; ",
        ),
        ({}, "missing", "running without triton (pip install 'sharpmax[triton]')"),
    ],
)
def test_what_it_does_not_support_is_named(monkeypatch, options, modules, name):
    if modules != "found":
        found = None if modules == "missing" else SimpleNamespace(interpreted=False)
        monkeypatch.setattr(launch, "find_modules", lambda: found)
    call = dict.fromkeys(("query", "key", "value"), ONES) | options
    with pytest.raises(NotImplementedError) as error:
        scaled_dot_product_attention(**call, impl="triton")
    assert str(error.value).startswith(f'impl="triton" does not support {name}')


def test_float64_is_refused_on_a_gpu(monkeypatch):
    monkeypatch.setattr(launch, "find_modules", lambda: SimpleNamespace(interpreted=False))
    query = SimpleNamespace(shape=(1, 1, 1, 1, 8), device=SimpleNamespace(type="cuda"))
    inputs = SimpleNamespace(dropout=0.0, query=query, value=None, stats_dtype=torch.float64)
    assert triton.refusal(inputs) == "float64"


@pytest.mark.parametrize(
    ("device", "fused_refuses", "triton_refuses", "passes", "chosen"),
    [
        ("cuda", None, None, True, "fused"),
        ("cuda", "softcap", None, True, "triton"),
        ("cuda", "softcap", "dropout", True, "streaming"),
        ("cuda", "softcap", None, False, "streaming"),
        ("cpu", "softcap", None, True, "streaming"),
    ],
)
def test_auto_uses_it_on_cuda_where_fused_cannot(
    monkeypatch, device, fused_refuses, triton_refuses, passes, chosen
):
    query = SimpleNamespace(device=SimpleNamespace(type=device))
    inputs = SimpleNamespace(query=query, key=query, value=None, needs_gradient=True)
    monkeypatch.setattr(fused, "refusal", lambda _: fused_refuses)
    monkeypatch.setattr(triton, "refusal", lambda _: triton_refuses)
    monkeypatch.setattr(trial, "passes", lambda *_: passes)
    assert api._choose(inputs, sx.PAPER, None, "auto", stats=False) == chosen


@pytest.mark.slow
def test_a_trial_finds_what_does_not_work(monkeypatch):
    monkeypatch.setattr(launch, "block_choices", lambda *_: (Blocks(64, 64, 4, 1),))
    ones = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16, device=DEVICE)
    inputs = prepare_inputs(ones, ones, ones)
    with torch.inference_mode():  # wherever it is called
        assert trial.passes(inputs, streaming.attend)
    right = triton.attend

    def wrong(*given):
        output, stats = right(*given)
        return output * 1.2, stats

    def broken(*given):
        raise RuntimeError("out of resources")

    for attempt in (wrong, broken):
        trial._passes.cache_clear()
        monkeypatch.setattr(triton, "attend", attempt)
        assert not trial.passes(inputs, streaming.attend)
    trial._passes.cache_clear()


@pytest.mark.slow
def test_statistics_alone_are_the_same_bits(rng):
    query, key, value = (tensor.detach() for tensor in leaves(*[(1, 2, 13, 8)] * 3))
    both = attention(query, key, value, is_causal=True, impl="triton").stats
    alone = attention_stats(query, key, is_causal=True, impl="triton")
    for name in STATS:
        assert torch.equal(getattr(alone, name), getattr(both, name))


@pytest.mark.slow
def test_they_compile_for_a_gpu(tmp_path):
    """The interpreter runs what the compiler would refuse; the compiler needs no GPU."""
    worker = Path(__file__).with_name("compile_worker.py")
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, worker], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    forward, backward = ["statistics", "attend"], ["attend_keys", "attend_rows"]
    backward += ["statistics_keys", "statistics_rows"]
    masked = sorted(["count", *forward, *backward])
    assert done.stdout.split() == [*sorted(forward), *masked, *masked]
