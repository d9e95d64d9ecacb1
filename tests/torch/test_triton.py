"""Kernels of our own give the answer and the gradients of the definition.

Without a GPU they run in Triton's interpreter, in float64; with one they are compiled, in float32.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sharpmax as sx
import truth
from attention_cases import OPTIONS, SIZES, STATS, assert_is, make, mask_of
from sharpmax.torch import (
    api,
    attention,
    attention_stats,
    fused,
    reference,
    scaled_dot_product_attention,
)
from sharpmax.torch.interface import prepare_inputs
from sharpmax.torch.streaming import attend as streaming_attend
from sharpmax.torch.triton import attention as triton_attention
from sharpmax.torch.triton import launch
from sharpmax.torch.triton import trial as triton_trial
from sharpmax.torch.triton.launch import Blocks

pytest.importorskip("triton", reason="triton is not installed")

# The interpreter works out both sides of a choice, and NumPy warns of the one that is not taken.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = torch.cuda.is_available()
DEVICE, EXACT = ("cuda", torch.float32) if ON_GPU else ("cpu", torch.float64)
# Logits reach 40: their last digits times a few sums.
TOLERANCE = 2e-4 if ON_GPU else 1e-12
GRADIENT_TOLERANCE = 2e-3 if ON_GPU else 1e-10

KINDS = ("none", "padding", "rows", "heads", "bias")
SHARPENING = sx.Polynomial((0.1, 0.3, 0.9), threshold=0.2)  # smooth wherever entropies lie here


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks so small that problems here have several, of uneven sizes."""
    monkeypatch.setattr(launch, "block_choices", lambda *_: (Blocks(16, 16, 4, 1),))


@pytest.fixture
def ran(monkeypatch):
    """Which kernels ran."""
    names = []
    run = launch._launch

    def spy(kernel, *rest):
        names.append(kernel.__name__)
        run(kernel, *rest)

    monkeypatch.setattr(launch, "_launch", spy)
    return names


def tensors(arrays, dtype=EXACT):
    return [torch.tensor(array).to(DEVICE, dtype) for array in arrays]


def attend(*given, **options):
    return attention(*given, enable_gqa=True, impl="triton", **options)


def pairs():
    """Every pair of an option, a mask and a size; windows and causality mixed in."""
    for i, options in enumerate(OPTIONS):
        for j, kind in enumerate(KINDS):
            window = (None, 1, None, 6)[(i + 3 * j) % 4]
            yield options, kind, SIZES[(i + j) % 5], (i + j // 2) % 2 == 0, window


@pytest.mark.parametrize(("options", "kind", "size", "causal", "window"), list(pairs()), ids=str)
def test_equals_attention_to_the_visible_keys(rng, options, kind, size, causal, window):
    queries, keys, kv_heads = size
    options = options | {"window": window}
    if "sinks" in options:
        options = options | {"sinks": rng.normal(size=4)}
    arrays = make(rng, queries, keys, kv_heads=kv_heads)
    mask, meaning = mask_of(rng, kind, queries, keys)
    expected = truth.attention(*arrays, **meaning, causal=causal, **options)
    if "sinks" in options:
        options = options | {"sinks": torch.tensor(options["sinks"], device=DEVICE)}
    mask = None if mask is None else mask.to(DEVICE)
    found = attend(*tensors(arrays), attn_mask=mask, is_causal=causal, **options)
    assert_is(found, expected, TOLERANCE)


@pytest.mark.parametrize("blocks", [Blocks(32, 16, 4, 1), Blocks(16, 32, 4, 1)], ids=str)
@pytest.mark.parametrize("sizes", [(3, 20), (17, 1)])
def test_any_blocks_and_head_sizes(rng, monkeypatch, blocks, sizes):
    """Values may have another size than keys, and neither need be a power of two."""
    monkeypatch.setattr(launch, "block_choices", lambda *_: (blocks,))
    dim, size = sizes
    shapes = ((1, 2, 37, dim), (1, 1, 41, dim), (1, 1, 41, size))
    arrays = [rng.normal(size=shape) for shape in shapes]
    expected = truth.attention(*arrays, causal=True, window=19)
    assert_is(attend(*tensors(arrays), is_causal=True, window=19), expected, TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_lower_precision_is_as_exact_as_the_reference(rng, dtype, softcap):
    """The tolerance is derived: a few times the error of the readable version in the same type."""
    arrays = [array[:1] for array in tensors(make(rng, 29, 37, kv_heads=2), dtype)]
    mask = mask_of(rng, "rows", 29, 37)[0].to(DEVICE)
    options = {"attn_mask": mask, "is_causal": softcap is None, "softcap": softcap}
    wide = (array.double() for array in arrays)
    exact = attention(*wide, impl="reference", enable_gqa=True, **options)
    plain = attention(*arrays, impl="reference", enable_gqa=True, **options)
    ours = attend(*arrays, **options)
    assert ours.output.dtype == dtype
    for name in STATS[:4] + STATS[5:]:
        true, low, found = (getattr(it.stats, name) for it in (exact, plain, ours))
        seen = exact.stats.count > 0
        error = (low.double() - true)[seen].abs().max().item()
        assert found.dtype == torch.float32
        size = true[seen].abs().max().item()
        bound = 8 * error + 16 * torch.finfo(torch.float32).eps * size
        assert (found.double() - true)[seen].abs().max().item() <= bound, name
    error = (plain.output.double() - exact.output).abs().max().item()
    assert (ours.output.double() - exact.output).abs().max().item() <= 4 * error


def leaves(*shapes, dtype=EXACT):
    generator = torch.Generator().manual_seed(2)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        .to(DEVICE, dtype)
        .requires_grad_()
        for shape in shapes
    ]


def penalty(found, weight=1.0):
    """Something that the output and the statistics all have a part in."""
    output, stats = found
    sizes = torch.arange(1, output.shape[-1] + 1, device=output.device)
    total = torch.where(stats.count > 0, stats.log_sum_exp, 0.0)
    wide = (output.to(total.dtype) * sizes).square().sum()
    return weight * wide + (stats.entropy.square() + total * stats.entropy).sum()


def masks(kind):
    hidden = torch.rand(19, 21, generator=torch.Generator().manual_seed(5)) < 0.4
    hidden[[2, 18]] = True
    if kind == "boolean":
        return ~hidden.to(DEVICE)
    shape = {"bias": (2, 2, 19, 21), "shared bias": (1, 1, 19, 21), "key bias": (21,)}[kind]
    bias = leaves(shape)[0].detach()
    if kind == "shared bias":
        bias = bias.masked_fill(hidden.to(DEVICE), -torch.inf)
    return bias.requires_grad_()


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": 5, "softcap": 2.0},
    "boolean": {"attn_mask": "boolean", "sinks": True, "is_causal": True},
    "bias": {"attn_mask": "bias", "softcap": 2.0, "window": 7, "is_causal": True},
    "shared bias": {"attn_mask": "shared bias", "sinks": True},
    "key bias": {"attn_mask": "key bias", "is_causal": True},
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_reference(case):
    """Through the output, the statistics, and the inverse temperature between them."""
    options = dict(CASES[case])
    batch = 2 if case == "bias" else 1
    given = leaves((batch, 2, 19, 3), (batch, 1, 21, 3), (batch, 1, 21, 5))
    if "attn_mask" in options:
        options["attn_mask"] = masks(options["attn_mask"])
    if "sinks" in options:
        options["sinks"] = leaves((2,))[0]
    wanted = [
        tensor
        for tensor in (*given, *options.values())
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad
    ]
    found = {}
    for impl in ("reference", "triton"):
        answer = attention(*given, enable_gqa=True, policy=SHARPENING, impl=impl, **options)
        loss = penalty(answer) + (answer.stats.max_weight.sum() + answer.stats.spread.sum())
        found[impl] = torch.autograd.grad(loss, wanted)
    for ours, theirs in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=GRADIENT_TOLERANCE, atol=GRADIENT_TOLERANCE)


@pytest.mark.skipif(ON_GPU, reason="finite differences need float64")
def test_gradients_are_those_of_finite_differences():
    given = leaves((1, 1, 3, 2), (1, 1, 4, 2), (1, 1, 4, 2), (3, 4), (1,))

    def measure(query, key, value, bias, sinks):
        output, stats = attend(
            query,
            key,
            value,
            attn_mask=bias,
            sinks=sinks,
            softcap=2.0,
            is_causal=True,
            policy=SHARPENING,
        )
        return output, stats.entropy, stats.log_sum_exp

    assert torch.autograd.gradcheck(measure, given, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_in_lower_precision(dtype):
    given = leaves((1, 2, 19, 8), (1, 1, 21, 8), (1, 1, 21, 8), dtype=dtype)

    def gradients(impl, tensors):
        answer = attention(*tensors, enable_gqa=True, is_causal=True, policy=SHARPENING, impl=impl)
        return torch.autograd.grad(penalty(answer, 0.1), tensors)

    exact = gradients("reference", [it.detach().double().requires_grad_() for it in given])
    plain, ours = gradients("reference", given), gradients("triton", given)
    for true, low, found in zip(exact, plain, ours, strict=True):
        assert found.dtype == dtype
        error = (low.double() - true).abs().max().item()
        assert (found.double() - true).abs().max().item() <= 8 * error


@pytest.mark.parametrize("rest", [False, True])
def test_a_policy_may_be_learned(rest):
    """Its parameters get their gradients, also where nothing else needs one."""
    given = [it.detach().requires_grad_(rest) for it in leaves((1, 2, 5, 3), *[(1, 2, 6, 3)] * 2)]
    found = {}
    for impl in ("reference", "triton"):
        slope = torch.full((2, 1, 1), 0.3, dtype=EXACT, device=DEVICE, requires_grad=True)
        output = scaled_dot_product_attention(
            *given, policy=lambda entropy, count, slope=slope: 1 + slope * entropy, impl=impl
        )
        found[impl] = torch.autograd.grad(output.square().sum(), slope)[0]
    tolerance = {"rtol": GRADIENT_TOLERANCE, "atol": GRADIENT_TOLERANCE}
    torch.testing.assert_close(found["triton"], found["reference"], **tolerance)


def test_second_derivatives_are_refused():
    query, key, value = leaves(*[(1, 1, 3, 2)] * 3)
    output = attend(query, key, value).output
    (gradient,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("sinks", [False, True])
def test_a_row_that_sees_nothing(rng, sinks):
    given = [tensor[:1, :2].requires_grad_() for tensor in tensors(make(rng, 9, 9))]
    mask = torch.ones(9, 9, dtype=torch.bool, device=DEVICE)
    empty = [0, 4, 8]
    mask[empty] = False
    options = {"sinks": torch.zeros(2, device=DEVICE)} if sinks else {}
    output, stats = attend(*given, attn_mask=mask, **options)
    assert (output[:, :, empty] == 0).all()
    assert (stats.entropy[:, :, empty] == 0).all()
    assert (stats.count[:, :, empty] == 0).all()
    assert (stats.log_sum_exp[:, :, empty] == -torch.inf).all()
    assert (stats.inverse_temperature[:, :, empty] == 1).all()
    (output.square().sum() + stats.entropy.sum() + stats.max_weight.sum()).backward()
    for tensor in given:
        assert tensor.grad.isfinite().all()
    assert (given[0].grad[:, :, empty] == 0).all()


def test_infinities_and_nans_stay_in_their_rows(rng):
    """+inf shares the mass, NaN spoils the rows that see it, and a hidden one spoils nothing."""
    query, key, value = (tensor[:1, :2] for tensor in tensors(make(rng, 4, 18)))
    bias = torch.zeros(4, 18, dtype=EXACT, device=DEVICE)
    bias[0, 1] = bias[0, 17] = torch.inf
    output, stats = attend(query, key, value, attn_mask=bias)
    both = (value[:, :, 1] + value[:, :, 17]) / 2
    torch.testing.assert_close(output[:, :, 0], both)
    torch.testing.assert_close(stats.entropy[:, :, 0], torch.full_like(both[..., 0], math.log(2)))
    assert (stats.log_sum_exp[:, :, 0] == torch.inf).all()
    clean = attend(query, key, value).output
    torch.testing.assert_close(output[:, :, 1:], clean[:, :, 1:])
    query[:, :, 2] = torch.nan
    output, stats = attend(query, key, value)
    for row in (output[:, :, 2, 0], stats.entropy[:, :, 2], stats.max_logit[:, :, 2]):
        assert row.isnan().all()
    torch.testing.assert_close(output[:, :, [0, 1, 3]], clean[:, :, [0, 1, 3]])
    key[:, :, 5] = torch.nan
    visible = torch.ones(4, 18, dtype=torch.bool, device=DEVICE)
    visible[:, 5] = False
    assert attend(query[:, :, :2], key, value, attn_mask=visible[:2]).output.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_lowest_number_of_a_mask_s_type_hides_as_infinity_does(rng, dtype):
    given = [tensor[:1, :1] for tensor in tensors(make(rng, 6, 9), torch.float32)]
    hidden = torch.rand(6, 9, generator=torch.Generator().manual_seed(1)).to(DEVICE) < 0.4
    hidden[3] = True
    boolean = attend(*given, attn_mask=~hidden)
    lowest = torch.zeros(6, 9, dtype=dtype, device=DEVICE)
    lowest = lowest.masked_fill(hidden, torch.finfo(dtype).min)
    found = attend(*given, attn_mask=lowest)
    assert torch.equal(found.stats.count, boolean.stats.count)
    torch.testing.assert_close(found.output, boolean.output)
    torch.testing.assert_close(found.stats.entropy, boolean.stats.entropy)


def test_nothing_at_all():
    empty = torch.zeros(2, 3, 0, 8, device=DEVICE)
    some = torch.ones(2, 3, 5, 8, device=DEVICE)
    no_keys = attend(some, empty, empty)
    assert torch.equal(no_keys.output, torch.zeros_like(some))
    assert (no_keys.stats.count == 0).all()
    assert (no_keys.stats.max_logit == -torch.inf).all()
    assert (no_keys.stats.min_logit == torch.inf).all()
    assert attend(empty, some, some).output.shape == (2, 3, 0, 8)
    assert attend(some[:0], some[:0], some[:0]).output.shape == (0, 3, 5, 8)


@pytest.mark.parametrize("factor", [1e-30, 1e3])
def test_hidden_keys_have_no_weight_at_any_temperature(rng, factor):
    query, key, value = tensors(make(rng, 5, 9))
    mask = torch.arange(9, device=DEVICE)[None] < 4
    policy = sx.Constant(factor)
    hidden = attend(query, key, value, attn_mask=mask, policy=policy).output
    short = attention(query, key[:, :, :4], value[:, :, :4], policy=policy, impl="reference").output
    torch.testing.assert_close(hidden, short, rtol=0, atol=max(TOLERANCE, 1e-10))


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_any_layout_in_memory(rng, layout):
    given = [tensor[:, :2] for tensor in tensors(make(rng, 13, 13))]
    if layout == "transposed":  # as models lay it out: [batch, length, heads, dim]
        given = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in given]
    elif layout == "strided":
        given = [tensor.mT.contiguous().mT for tensor in given]
    else:
        given[1] = given[1][:1].expand(2, -1, -1, -1)
    given = [tensor.requires_grad_() for tensor in given]
    sinks = leaves((4,))[0].detach()[::2]
    found = {}
    for impl in ("reference", "triton"):
        output = scaled_dot_product_attention(*given, sinks=sinks, impl=impl)
        # As models go on, which gives the gradient gaps.
        joined = output.transpose(1, 2).flatten(2)
        weights = torch.arange(joined.numel(), device=DEVICE).view_as(joined) / joined.numel()
        found[impl] = (output, *torch.autograd.grad((joined * weights).sum(), given))
    for ours, theirs in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3)])
def test_any_number_of_batch_axes(rng, shape):
    query, key, value = tensors(rng.normal(size=(*shape, n, 8)) for n in (6, 9, 9))
    found = attend(query, key, value)
    expected = attention(query, key, value, impl="reference")
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.stats.entropy, expected.stats.entropy)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"window": 3}], ids=str)
def test_blocks_that_nobody_sees_are_not_computed(rng, options):
    """A NaN in a value that is only hidden would spoil the sum; that of a block left out cannot."""
    query, key, value = (tensor[:1, :1] for tensor in tensors(make(rng, 40, 40)))
    value[:, :, 32:] = torch.nan
    output = attend(query, key, value, **options).output
    assert output[:, :, :16].isfinite().all()


@pytest.mark.parametrize("first_key", [0, 4, 30])
def test_keys_may_begin_later(rng, first_key):
    """As a part of the keys of a longer sequence."""
    given = [tensor[:1, :2] for tensor in tensors(make(rng, 19, 21))]
    problem = replace(prepare_inputs(*given, is_causal=True, window=9), first_key=first_key)
    ours, stats = triton_attention.attend(problem, sx.PAPER, True)
    expected, true = reference.attend(problem, sx.PAPER)
    torch.testing.assert_close(ours, expected)
    assert torch.equal(stats.count, true.count)


def test_statistics_alone_are_the_same(rng, ran):
    query, key, value = tensors(make(rng, 13, 29))
    mask = mask_of(rng, "rows", 13, 29)[0].to(DEVICE)
    both = attend(query, key, value, attn_mask=mask, is_causal=True).stats
    ran.clear()
    alone = attention_stats(query, key, attn_mask=mask, is_causal=True, impl="triton")
    for name in (*STATS, "max_weight", "spread", "effective_items"):
        torch.testing.assert_close(getattr(alone, name), getattr(both, name), rtol=0, atol=0)
    assert ran == ["count", "statistics"]


def test_a_policy_that_ignores_the_entropy_needs_one_pass(rng, ran):
    query, key, value = tensors(make(rng, 5, 9))
    for policy in (sx.Constant(1.0), sx.LogLength(4)):
        given = {"policy": policy, "softcap": 3.0}
        found = scaled_dot_product_attention(query, key, value, impl="triton", **given)
        assert ran == ["attend"]
        ran.clear()
        expected = scaled_dot_product_attention(query, key, value, impl="reference", **given)
        torch.testing.assert_close(found, expected)


ONES = torch.ones(1, 2, 5, 8, device=DEVICE)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"dropout_p": 0.1}, "dropout_p=0.1"),
        ({"value": torch.ones(1, 2, 5, 300)}, "heads of size 300 (at most 256)"),
        (dict.fromkeys(("query", "key", "value"), ONES.to("meta")), "meta tensors (CUDA only)"),
        ({"compiled": ONES.cpu()}, "cpu tensors (CUDA only; "),
        ({"compiled": ONES.double().to("cpu")}, "cpu tensors"),
        ({"missing": True}, "running without triton (pip install 'sharpmax[triton]')"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_what_it_cannot_do_is_named(monkeypatch, options, name):
    options = dict(options)
    if options.pop("missing", False):
        monkeypatch.setattr(launch, "find_modules", lambda: None)
    if (compiled := options.pop("compiled", None)) is not None:
        found = SimpleNamespace(interpreted=False)
        monkeypatch.setattr(launch, "find_modules", lambda: found)
        options |= dict.fromkeys(("query", "key", "value"), compiled)
    call = dict.fromkeys(("query", "key", "value"), ONES) | options
    with pytest.raises(NotImplementedError) as error:
        scaled_dot_product_attention(**call, impl="triton")
    assert str(error.value).startswith(f'impl="triton" does not support {name}')


def test_auto_takes_it_on_cuda_where_fused_cannot(monkeypatch):
    """And never on a CPU."""

    def chosen(device, fused_refuses, triton_refuses, passes=True):
        tensor = SimpleNamespace(device=SimpleNamespace(type=device))
        problem = SimpleNamespace(
            query=tensor,
            key=tensor,
            value=None,
            needs_gradient=True,
        )
        monkeypatch.setattr(fused, "refusal", lambda _: fused_refuses)
        monkeypatch.setattr(triton_attention, "refusal", lambda _: triton_refuses)
        monkeypatch.setattr(triton_trial, "passes", lambda *_: passes)
        return api._choose(problem, sx.PAPER, None, "auto", stats=False)

    assert chosen("cuda", None, None) == "fused"
    assert chosen("cuda", "softcap", None) == "triton"
    assert chosen("cuda", "softcap", "dropout") == "streaming"
    assert chosen("cuda", "softcap", None, passes=False) == "streaming"
    assert chosen("cpu", "softcap", None) == "streaming"


def test_a_trial_finds_what_does_not_work(monkeypatch):
    monkeypatch.setattr(launch, "block_choices", lambda *_: (Blocks(64, 64, 4, 1),))
    ones = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16, device=DEVICE)
    problem = prepare_inputs(ones, ones, ones)
    with torch.inference_mode():  # wherever it is asked
        assert triton_trial.passes(problem, streaming_attend)
    right = triton_attention.attend

    def wrong(*given):
        output, stats = right(*given)
        return output * 1.2, stats

    def broken(*given):
        raise RuntimeError("out of resources")

    for attempt in (wrong, broken):
        triton_trial._passes.cache_clear()
        monkeypatch.setattr(triton_attention, "attend", attempt)
        assert not triton_trial.passes(problem, streaming_attend)
    triton_trial._passes.cache_clear()


def test_float64_is_refused_on_a_gpu(monkeypatch):
    monkeypatch.setattr(launch, "find_modules", lambda: SimpleNamespace(interpreted=False))
    tensor = SimpleNamespace(shape=(1, 1, 1, 1, 8), device=SimpleNamespace(type="cuda"))
    problem = SimpleNamespace(dropout=0.0, query=tensor, value=None, stats_dtype=torch.float64)
    assert triton_attention.refusal(problem) == "float64"


def test_they_compile_for_a_gpu(tmp_path):
    """The interpreter runs what the compiler would refuse; the compiler needs no GPU."""
    worker = Path(__file__).with_name("triton_worker.py")
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, worker], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    forward, backward = ["statistics", "attend"], ["attend_keys", "attend_rows"]
    backward += ["statistics_keys", "statistics_rows"]
    masked = sorted(["count", *forward, *backward])
    assert done.stdout.split() == [*sorted(forward), *masked, *masked]
