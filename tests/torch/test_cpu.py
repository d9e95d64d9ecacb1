"""The compiled kernel gives the answers of the reference, to what float32 allows."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch

import sharpmax as sx
import truth
from attention_cases import OPTIONS, SIZES, STATS, make, mask_of
from sharpmax.cpu import blockwise
from sharpmax.torch import attention, attention_stats, cpu, scaled_dot_product_attention

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Blocks and tiles so small that every problem here has several, of uneven sizes."""
    monkeypatch.setattr(blockwise, "BLOCK_ROWS", 5)
    monkeypatch.setattr(blockwise, "MIN_BLOCK_ROWS", 5)
    monkeypatch.setattr(blockwise, "TILE", 7)


def assert_as_exact(ours, plain, exact: truth.Truth, dtype=torch.float32):
    """The tolerance is derived: a few times the error of the readable version in the same type, and
    a few roundings of the largest number.
    """
    seen = exact.count > 0
    for name in STATS:
        true = np.asarray(getattr(exact, name))
        low, found = (getattr(it.stats, name).double().numpy() for it in (plain, ours))
        assert (found[~seen] == low[~seen]).all(), name
        if seen.any():
            low, found, true = low[seen], found[seen], true[seen]
            bound = 8 * np.abs(low - true).max() + 16 * EPS * np.abs(true).max()
            assert np.abs(found - true).max() <= bound, name
    error = np.abs(plain.output.double().numpy() - exact.output).max()
    size = np.abs(exact.output).max()
    bound = 4 * error + 8 * torch.finfo(dtype).eps * size
    assert np.abs(ours.output.double().numpy() - exact.output).max() <= bound
    assert ours.output.dtype == dtype


def assert_equals_reference(arrays, mask, meaning, causal, options, dtype=torch.float32):
    """Given in float64, rounded here: all three read the same numbers."""
    tensors = [torch.tensor(array).to(dtype) for array in arrays]
    rounded = [tensor.double().numpy() for tensor in tensors]
    exact = truth.attention(*rounded, **meaning, causal=causal, **options)
    if "sinks" in options:
        options = options | {"sinks": torch.tensor(options["sinks"], dtype=dtype)}
    settings = {"attn_mask": mask, "is_causal": causal, "enable_gqa": True, **options}
    ours, plain = (attention(*tensors, impl=impl, **settings) for impl in ("cpu", "reference"))
    assert_as_exact(ours, plain, exact, dtype)


@pytest.mark.parametrize("options", [*OPTIONS, {"window": 3}, {"window": 40}], ids=str)
@pytest.mark.parametrize("kind", ["none", "padding", "rows", "heads", "bias"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "kv_heads"), SIZES)
def test_equals_attention_to_the_visible_keys(rng, options, kind, causal, queries, keys, kv_heads):
    if "sinks" in options:
        options = options | {"sinks": rng.normal(size=4).astype(np.float32).astype(np.float64)}
    arrays = make(rng, queries, keys, kv_heads=kv_heads)
    mask, meaning = mask_of(rng, kind, queries, keys)
    if kind == "bias":
        mask = mask.float()
        meaning = {"bias": mask.double().numpy()}
    assert_equals_reference(arrays, mask, meaning, causal, options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_is_computed_in_float32(rng, dtype, causal):
    mask, meaning = mask_of(rng, "rows", 29, 37)
    assert_equals_reference(make(rng, 29, 37, kv_heads=2), mask, meaning, causal, {}, dtype)


@pytest.mark.parametrize(
    "policy", [sx.Constant(1.0), sx.LogLength(4), sx.Saturating(sx.PAPER), None]
)
def test_any_policy(rng, policy):
    """Also one that is written for tensors."""
    policy = policy or (lambda entropy, count: (1 + entropy) ** 0.5 * (1 + (count > 3)))
    assert_equals_reference(make(rng, 13, 29), None, {}, True, {"policy": policy})


def test_queries_of_long_rows_in_blocks_of_the_usual_size(monkeypatch):
    monkeypatch.undo()
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, 2, 700, 24)) * size for size in (2.0, 1.0, 1.0)]
    for causal in (False, True):
        assert_equals_reference(arrays, None, {}, causal, {})


def test_statistics_alone_are_the_same(rng):
    query, key, value = (torch.tensor(array).float() for array in make(rng, 13, 29))
    mask, _ = mask_of(rng, "rows", 13, 29)
    both = attention(query, key, value, attn_mask=mask, is_causal=True, impl="cpu").stats
    alone = attention_stats(query, key, attn_mask=mask, is_causal=True, impl="cpu")
    for name in (*STATS, "max_weight", "spread", "effective_items"):
        assert torch.equal(getattr(alone, name), getattr(both, name))


def test_plain_attention_is_bit_for_bit_what_a_policy_of_1_gives(rng):
    """Rows too sharp for the policy are left as they are."""
    query, key, value = (torch.tensor(array).float() for array in make(rng, 13, 29, spread=40.0))
    sharp = attention(query, key, value, impl="cpu")
    assert (sharp.stats.inverse_temperature == 1).any()
    plain = attention(query, key, value, policy=sx.Constant(1.0), impl="cpu")
    left = sharp.stats.inverse_temperature == 1
    assert torch.equal(sharp.output[left], plain.output[left])


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_any_layout_in_memory(rng, layout):
    arrays = [torch.tensor(array).float() for array in make(rng, 13, 13)]
    if layout == "transposed":
        arrays = [array.transpose(1, 2).contiguous().transpose(1, 2) for array in arrays]
    elif layout == "strided":
        arrays = [array.mT.contiguous().mT for array in arrays]
    else:
        arrays[1] = arrays[1][:1].expand(2, -1, -1, -1)
    expected = attention(*arrays, impl="reference").output
    torch.testing.assert_close(attention(*arrays, impl="cpu").output, expected)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 1, 3)])
def test_any_number_of_batch_axes(rng, shape):
    tensors = [torch.tensor(rng.normal(size=(*shape, n, 8))).float() for n in (6, 9, 9)]
    found, expected = (attention(*tensors, impl=impl) for impl in ("cpu", "reference"))
    assert found.output.shape == tensors[0].shape
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.stats.entropy, expected.stats.entropy)


def test_nothing_at_all():
    empty, some = torch.zeros(2, 3, 0, 8), torch.ones(2, 3, 5, 8)
    no_keys = attention(some, empty, empty, impl="cpu")
    assert torch.equal(no_keys.output, torch.zeros(2, 3, 5, 8))
    assert (no_keys.stats.count == 0).all()
    assert (no_keys.stats.max_logit == -torch.inf).all()
    assert (no_keys.stats.min_logit == torch.inf).all()
    assert attention(empty, some, some, impl="cpu").output.shape == (2, 3, 0, 8)
    assert attention(some[:0], some[:0], some[:0], impl="cpu").output.shape == (0, 3, 5, 8)


def test_infinities_and_nans_stay_in_their_rows(rng):
    """+inf shares the mass, NaN of either sign spoils the rows that see it, hidden ones nothing."""
    query, key, value = (torch.tensor(array).float() for array in make(rng, 6, 16))
    bias = torch.zeros(6, 16)
    bias[0, 1] = bias[0, 13] = torch.inf
    bias[1, 2] = torch.nan
    bias[2, 14] = -torch.tensor(torch.nan)
    bias[3, 0] = torch.inf
    bias[3, 9] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output, stats = attention(query, key, value, attn_mask=bias, impl="cpu")
    torch.testing.assert_close(output[:, :, 0], (value[:, :, 1] + value[:, :, 13]) / 2)
    torch.testing.assert_close(stats.entropy[:, :, 0], torch.full((2, 4), math.log(2.0)))
    assert (stats.log_sum_exp[:, :, 0] == torch.inf).all()
    for spoilt in (1, 2, 3):
        assert output[:, :, spoilt].isnan().all()
        assert stats.entropy[:, :, spoilt].isnan().all()
    plain = attention(query, key, value, policy=sx.Constant(1.0), attn_mask=bias, impl="cpu")
    assert plain.output[:, :, 1:4].isnan().all()
    clean = attention(query, key, value, impl="cpu").output
    assert torch.equal(output[:, :, 4:], clean[:, :, 4:])
    key[:, :, 5] = torch.nan
    visible = torch.ones(6, 16, dtype=torch.bool)
    visible[:, 5] = False
    assert attention(query, key, value, attn_mask=visible, impl="cpu").output.isfinite().all()


def test_hidden_keys_have_no_weight_at_any_temperature(rng):
    query, key, value = (torch.tensor(array).float() for array in make(rng, 5, 9))
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask[:, 4:] = False
    value[:, :, 4:] = 1e30
    for factor in (0.0, 1e-30, 1e-3, 1e3):
        output = scaled_dot_product_attention(
            query, key, value, mask, policy=lambda h, n, f=factor: 0 * h + f, impl="cpu"
        )
        short = scaled_dot_product_attention(
            query,
            key[:, :, :4],
            value[:, :, :4],
            policy=lambda h, n, f=factor: 0 * h + f,
            impl="cpu",
        )
        torch.testing.assert_close(output, short, rtol=1e-5, atol=1e-6)


def test_what_it_cannot_do_is_refused_by_name(rng, monkeypatch):
    query, key, value = (torch.tensor(array).float() for array in make(rng, 5, 9))
    for tensors, options, message in (
        ([query.double(), key.double(), value.double()], {}, "does not support torch.float64"),
        ([query.requires_grad_(), key, value], {}, "does not support gradients"),
        ([query.detach(), key, value], {"dropout_p": 0.5}, "does not support dropout_p=0.5"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            attention(*tensors, impl="cpu", **options)
    monkeypatch.setattr(cpu, "missing_package", lambda: "numba")
    with pytest.raises(NotImplementedError, match=r"without numba: pip install 'sharpmax\[cpu\]'"):
        attention(query.detach(), key, value, impl="cpu")
    found = attention(query.detach(), key, value)  # and all else works as before
    torch.testing.assert_close(
        found.output, attention(query.detach(), key, value, impl="reference").output
    )


def test_auto_uses_it_where_the_entropy_is_looked_at(rng, monkeypatch):
    calls = []
    monkeypatch.setattr(blockwise, "attend", _recording(blockwise.attend, calls))
    query, key, value = (torch.tensor(array).float() for array in make(rng, 5, 9))
    scaled_dot_product_attention(query, key, value)
    attention_stats(query, key)
    assert len(calls) == 2
    scaled_dot_product_attention(query, key, value, policy=sx.Constant(1.0))  # one fused call
    scaled_dot_product_attention(query, key, value.requires_grad_())
    scaled_dot_product_attention(query.double(), key.double(), value.detach().double())
    torch.compile(scaled_dot_product_attention, backend="eager")(query, key, value.detach())
    assert len(calls) == 2


def _recording(function, calls):
    def recorded(*arguments, **settings):
        calls.append(arguments)
        return function(*arguments, **settings)

    return recorded


def test_several_threads_may_call_at_once(rng):
    arrays = [torch.tensor(array).float() for array in make(rng, 40, 60)]
    expected = attention(*arrays, is_causal=True, impl="cpu").output
    wrong = []

    def work():
        for _ in range(20):
            if not torch.equal(attention(*arrays, is_causal=True, impl="cpu").output, expected):
                wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


FORKED = """
import multiprocessing
import torch
from sharpmax.torch import attention
torch.set_num_threads(2)
query = torch.randn(1, 4, 600, 16, generator=torch.Generator().manual_seed(0))
def work(queue):
    queue.put(attention(query, query, query, impl="cpu").output.numpy())
expected = attention(query, query, query, impl="cpu").output.numpy()  # starts threads
context = multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=work, args=(queue,))
child.start()
found = queue.get(timeout=120)
child.join(timeout=60)
print(child.exitcode, (found == expected).all())
"""


def test_a_forked_process_may_call_too():
    """In a process of its own: JAX, which other tests load, warns of forks."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "0 True\n"


def test_an_error_in_a_policy_comes_out_and_leaves_nothing_behind(rng, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    arrays = [torch.tensor(array).float() for array in make(rng, 40, 60)]

    def policy(entropy, count):
        raise ArithmeticError("no temperature today")

    with pytest.raises(ArithmeticError, match="no temperature today"):
        attention(*arrays, policy=policy, impl="cpu")
    attention(*arrays, impl="cpu")


def test_what_was_compiled_is_kept():
    """A second process compiles nothing."""
    code = (
        "import torch; from sharpmax.cpu import kernels; from sharpmax.torch import attention;"
        "q = torch.ones(1, 1, 3, 4); attention(q, q, q, impl='cpu');"
        "print([one.stats.cache_misses for one in (kernels.survey, kernels.weigh)])"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    total = [sum(map(int, part.split("}")[0].split(": ")[1:])) for part in done.stdout.split("{")]
    assert "{}" in done.stdout or not any(itertools.chain(total)), done.stdout
