"""The compiled kernel on tensors: when it is used, and from several threads and processes.

Its numbers are compared with those of the other implementations in test_implementations.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import sharpmax as sx
from attention_cases import Call, assert_right
from sharpmax.cpu import blockwise
from sharpmax.torch import attention, attention_stats, cpu, scaled_dot_product_attention


def make(queries=5, keys=9, spread=3.0):
    rng = np.random.default_rng(7)
    shapes = ((2, 4, queries, 8), (2, 4, keys, 8), (2, 4, keys, 8))
    query, key, value = (torch.tensor(rng.normal(size=shape)).float() for shape in shapes)
    return [query * spread, key, value]


@pytest.mark.parametrize("causal", [False, True])
def test_long_rows_in_blocks_of_the_usual_size(causal):
    """Several blocks of 256 rows, and tiles of 512 keys."""
    rng = np.random.default_rng(0)
    shape = (1, 1, 600, 8)
    query, key, value = (rng.normal(size=shape) for _ in range(3))
    call = Call(query * 2, key, value, causal=causal).rounded(torch.float32)
    assert_right(call.run("cpu"), call, torch.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_both_kinds_of_threads_give_the_same_numbers(threads, monkeypatch):
    tensors = make(40, 60)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found = attention(*tensors, is_causal=True, impl="cpu")
    monkeypatch.setattr("sharpmax.cpu.threads.openmp_team", lambda: None)
    pooled = attention(*tensors, is_causal=True, impl="cpu")
    assert torch.equal(found.output, pooled.output)
    assert torch.equal(found.stats.entropy, pooled.stats.entropy)


def test_plain_attention_is_bit_for_bit_what_a_policy_of_1_gives():
    """Rows too sharp for the policy are left as they are."""
    tensors = make(13, 29, spread=40.0)
    sharp = attention(*tensors, impl="cpu")
    plain = attention(*tensors, policy=sx.Constant(1.0), impl="cpu")
    left = sharp.stats.inverse_temperature == 1
    assert left.any()
    assert torch.equal(sharp.output[left], plain.output[left])


@pytest.mark.parametrize("factor", [1e-18, 1e-30, 1e-3, 1e3])
def test_hidden_keys_have_no_weight_at_any_temperature(factor):
    query, key, value = make()
    mask = torch.arange(9)[None] < 4
    value[:, :, 4:] = 1e30

    def policy(entropy, count):
        return 0 * entropy + factor

    output = scaled_dot_product_attention(query, key, value, mask, policy=policy, impl="cpu")
    keys = (key[:, :, :4], value[:, :, :4])
    short = scaled_dot_product_attention(query, *keys, policy=policy, impl="cpu")
    # Products of other shapes round a logit of 10 by up to 1e-6 differently, times the factor.
    torch.testing.assert_close(output, short, rtol=1e-5, atol=1e-6 * max(1.0, factor))


def test_what_it_does_not_support_is_refused_by_name(monkeypatch):
    query, key, value = make()
    for tensors, options, message in (
        ([query.double(), key.double(), value.double()], {}, "does not support torch.float64"),
        ([query.clone().requires_grad_(), key, value], {}, "not support gradients of statistics"),
        ([query, key, value], {"dropout_p": 0.5}, "does not support dropout_p=0.5"),
        ([x.to("meta") for x in (query, key, value)], {}, "does not support tensors on meta"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            attention(*tensors, impl="cpu", **options)
    monkeypatch.setattr(cpu, "missing_package", lambda: "numba")
    with pytest.raises(NotImplementedError, match=r"without numba: pip install 'sharpmax\[cpu\]'"):
        attention(query, key, value, impl="cpu")
    found = attention(query, key, value)  # and all else works as before
    torch.testing.assert_close(found.output, attention(query, key, value, impl="reference").output)


def test_auto_uses_it_where_the_entropy_is_needed(monkeypatch):
    calls = []
    attend = blockwise.attend

    def spy(*arguments, **settings):
        calls.append(arguments)
        return attend(*arguments, **settings)

    monkeypatch.setattr(blockwise, "attend", spy)
    query, key, value = make()
    scaled_dot_product_attention(query, key, value)
    attention_stats(query, key)
    scaled_dot_product_attention(query, key, value.clone().requires_grad_())
    assert len(calls) == 3
    scaled_dot_product_attention(query, key, value, policy=sx.Constant(1.0))  # torch's own
    attention(query, key, value.clone().requires_grad_())
    scaled_dot_product_attention(query.double(), key.double(), value.double())
    torch.compile(scaled_dot_product_attention, backend="eager")(query, key, value)
    assert len(calls) == 3


def test_several_threads_may_call_at_once():
    arrays = make(40, 60)
    expected = attention(*arrays, is_causal=True, impl="cpu").output
    wrong = []

    def work():
        for _ in range(10):
            if not torch.equal(attention(*arrays, is_causal=True, impl="cpu").output, expected):
                wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_in_a_policy_comes_out_and_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    arrays = make(40, 60)

    def policy(entropy, count):
        raise ArithmeticError("no temperature today")

    with pytest.raises(ArithmeticError, match="no temperature today"):
        attention(*arrays, policy=policy, impl="cpu")
    attention(*arrays, impl="cpu")


def run(code):
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_what_macos_and_windows_lack():
    code = """
import os, torch
del os.sched_getaffinity, os.register_at_fork  # now: `random` registers itself if there is os.fork
import sharpmax.cpu, sharpmax.torch
tensors = torch.randn(3, 1, 2, 40, 8)
expected = sharpmax.torch.attention(*tensors, impl="reference").output
for output in (
    sharpmax.torch.attention(*tensors).output,
    sharpmax.torch.attention(*tensors, impl="cpu").output,
    torch.tensor(sharpmax.cpu.attention(*tensors.numpy()).output),
):
    torch.testing.assert_close(output, expected)
print(sharpmax.cpu.threads.usable_cores() == os.cpu_count())
"""
    assert run(code) == "True\n"


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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_a_forked_process_may_call_too():
    """In a process of its own: JAX, which other tests load, warns of forks."""
    assert run(FORKED) == "0 True\n"


@pytest.mark.slow
def test_what_was_compiled_is_kept():
    """A second process compiles nothing."""
    code = (
        "import torch; from sharpmax.cpu import kernels; from sharpmax.torch import attention;"
        "q = torch.ones(1, 1, 3, 4); attention(q, q, q, impl='cpu');"
        "print(sum(kernels.attend_tasks.stats.cache_misses.values()))"
    )
    run(code)
    assert run(code) == "0\n"
