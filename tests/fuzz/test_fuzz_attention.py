"""Thousands of random attention calls against a literal float64 version, gradients included.

Case n is made from seed n, so that a failure is repeated by its number. A short slice runs with
the fast tests.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import sharpmax as sx
from attention_cases import POLICIES, SMOOTH, Call, assert_right
from sharpmax import cpu
from sharpmax.torch import attention

IMPLEMENTATIONS = ("reference", "streaming", "fused", "cpu", "auto", "NumPy")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SCALES = (None, 0.2, 1.0, 0.0, -0.5, -1e-60, 2.5)
STEP = 1e-5
"""Of central differences in float64: rounding and curvature then both cost about 1e-10."""


def random_call(rng: np.random.Generator, impl: str) -> Call:
    """Draw shapes, masks and options that an implementation supports."""
    plain = impl == "fused"
    pick = rng.integers
    fewest = 0 if not plain and rng.random() < 0.05 else 1
    batch, kv_heads, group = pick(fewest, 3), pick(1, 3), pick(1, 4)
    longest = 40 if rng.random() < 0.1 else 9
    queries, keys, dim = pick(1, longest), pick(1, longest), pick(1, 9)
    if not plain and rng.random() < 0.05:
        queries, keys = rng.choice([0, 1, 3], size=2)
    size = dim if plain else pick(1, 9)
    heads = kv_heads * group
    shapes = [(keys,), (batch, 1, 1, keys), (queries, keys), (1, heads, queries, keys)]
    shape = shapes[pick(4)]
    seen = rng.random(shape) < rng.choice([0.2, 0.7, 1.0])
    hiding = rng.choice([-np.inf, -3e38, -1e38])
    kind = rng.choice(["none", "boolean"] if plain else ["none", "boolean", "bias"])
    policies = (*POLICIES, sx.LogLength(1.5), sx.Constant(0.3), sx.Polynomial((0.0, 3.0)))
    return Call(
        query=rng.normal(size=(batch, heads, queries, dim)) * rng.choice([0.1, 1.0, 4.0]),
        key=rng.normal(size=(batch, kv_heads, keys, dim)),
        value=rng.normal(size=(batch, kv_heads, keys, size)),
        visible=seen if kind == "boolean" else None,
        bias=np.where(seen, rng.normal(size=shape), hiding) if kind == "bias" else None,
        sinks=rng.normal(size=heads) if rng.random() < 0.3 else None,
        causal=bool(rng.random() < 0.4),
        window=None if plain or rng.random() < 0.7 else int(pick(1, longest + 1)),
        scale=SCALES[pick(len(SCALES))],
        softcap=None if plain or rng.random() < 0.6 else float(rng.choice([0.7, 3.0, 50.0])),
        policy=policies[pick(len(policies))],
    )


def rearrange(rng: np.random.Generator, tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with other strides."""
    how = rng.integers(4)
    if how == 0:  # [batch, length, heads, dim] in memory
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if how == 1:
        return tensor.mT.contiguous().mT
    if how == 2:  # every second number of a larger array
        return torch.stack([tensor, tensor + 1], -1).flatten(-2)[..., ::2]
    return tensor


def run(rng: np.random.Generator, call: Call, impl: str, dtype: torch.dtype) -> Any:
    """Run a call by an implementation, on tensors or arrays of any strides."""
    tensors = [rearrange(rng, tensor) for tensor in call.tensors("reference", dtype)]
    options = call.options("auto" if impl == "NumPy" else impl, dtype)
    if impl != "NumPy":
        return attention(*tensors, **options)
    del options["impl"]
    for name in ("attn_mask", "sinks"):
        options[name] = None if options[name] is None else options[name].numpy()
    output, stats = cpu.attention(*(tensor.numpy() for tensor in tensors), **options)
    return as_tensors(output, stats)


def as_tensors(output: Any, stats: Any) -> Any:
    class Stats:
        pass

    for name, array in vars(stats).items():
        setattr(Stats, name, torch.from_numpy(np.array(array)))
    return torch.from_numpy(np.array(output)), Stats


def check_answers(number: int) -> None:
    """Compare output and statistics of one case."""
    rng = np.random.default_rng(number)
    impl = IMPLEMENTATIONS[number % len(IMPLEMENTATIONS)]
    dtypes = {"cpu": DTYPES[1:], "NumPy": (torch.float32, torch.float16)}.get(impl, DTYPES)
    dtype = dtypes[rng.integers(len(dtypes))]
    call = random_call(rng, impl)
    if impl == "NumPy" and getattr(call.policy, "__name__", "") == "policy_for_tensors":
        call = replace(call, policy=SMOOTH)
    if dtype == torch.float16 and call.bias is not None:  # which cannot hold -1e38
        call = replace(call, bias=np.where(call.bias < -100, -np.inf, call.bias))
    call = call.rounded(dtype)
    if call.bias is not None:  # the literal version hides by -inf alone
        right = replace(call, bias=np.where(call.bias < -1e37, -np.inf, call.bias))
    else:
        right = call
    assert_right(run(rng, call, impl, dtype), right, dtype)


def smooth_call(rng: np.random.Generator, impl: str) -> Call:
    """Draw a call that is differentiable, and small enough for finite differences."""
    call = random_call(rng, impl)
    policy = (SMOOTH, sx.LogLength(2), sx.Constant(1.5), lambda h, n: 1 + h / (1 + n))
    return replace(
        call,
        query=call.query / 4,
        sinks=None if impl == "fused" else call.sinks,
        policy=policy[rng.integers(len(policy))],
    )


def check_gradients(number: int) -> None:
    """Compare the gradient along a random direction with central differences of the truth."""
    rng = np.random.default_rng(number)
    impl = ("reference", "streaming", "fused", "auto")[number % 4]
    call = smooth_call(rng, impl)
    if call.bias is not None:
        call = replace(call, bias=np.where(call.bias < -1e37, -np.inf, call.bias))
    names = [name for name in ("query", "key", "value", "sinks") if getattr(call, name) is not None]
    weights = [
        rng.normal(size=numbers.shape) for numbers in (call.truth.output, call.truth.entropy)
    ]
    moves = {name: rng.normal(size=getattr(call, name).shape) for name in names}

    def loss(answer: Any) -> Any:
        return (answer.output * weights[0]).sum() + (answer.entropy * weights[1]).sum()

    def moved(step: float) -> Any:
        parts = {name: getattr(call, name) + step * moves[name] for name in names}
        return loss(replace(call, **parts).truth)

    expected = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    leaves = {name: torch.tensor(getattr(call, name), requires_grad=True) for name in names}
    options = call.options(impl)
    if call.sinks is not None:
        options["sinks"] = leaves["sinks"]
    arrays = [rearrange(rng, leaves[name]) for name in ("query", "key", "value")]
    output, stats = attention(*arrays, **options)
    total = (output * torch.tensor(weights[0])).sum()
    total = total + (stats.entropy * torch.tensor(weights[1])).sum()
    gradients = torch.autograd.grad(
        total, list(leaves.values()), materialize_grads=True, allow_unused=True
    )
    found = sum(
        (gradient.numpy() * moves[name]).sum()
        for name, gradient in zip(leaves, gradients, strict=True)
    )
    # The third derivative grows with the logits, and their number with the rows.
    size = 1 + abs(expected) + math.sqrt(sum(move.size for move in moves.values()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * size)


def repeat(check: Any, first: int, last: int) -> None:
    for number in range(first, last):
        try:
            check(number)
        except Exception as error:
            raise AssertionError(f"{check.__name__}({number})") from error


def test_some_answers():
    repeat(check_answers, 0, 120)


def test_some_gradients():
    repeat(check_gradients, 0, 40)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_answers(part):
    repeat(check_answers, 1000 + 600 * part, 1600 + 600 * part)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_gradients(part):
    repeat(check_gradients, 1000 + 250 * part, 1250 + 250 * part)
