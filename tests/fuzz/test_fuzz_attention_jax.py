"""Random attention calls for JAX against the literal float64 version, gradients included.

All have one of two shapes, because JAX compiles for each; without jit, so that options do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fuzz_attention import SCALES, STEP

import sharpmax as sx
from attention_cases import SMOOTH, STATS, Call
from sharpmax.jax import attention

SHAPES = ((2, 5, 7, 2, 3), (1, 6, 4, 1, 2))
"""Batch, queries, keys, key heads, query heads that share one."""


def random_call(rng: np.random.Generator) -> Call:
    batch, queries, keys, kv_heads, group = SHAPES[rng.integers(len(SHAPES))]
    seen = rng.random((1, kv_heads * group, queries, keys)) < 0.7
    bias = np.where(seen, rng.normal(size=seen.shape), -np.inf)
    policies = (sx.PAPER, SMOOTH, sx.LogLength(2), sx.Constant(0.7), lambda h, n: 1 + h)
    return Call(
        query=rng.normal(size=(batch, kv_heads * group, queries, 4)),
        key=rng.normal(size=(batch, kv_heads, keys, 4)),
        value=rng.normal(size=(batch, kv_heads, keys, 4)),
        visible=seen,
        bias=bias if rng.random() < 0.5 else None,
        causal=bool(rng.random() < 0.5),
        window=int(rng.integers(1, 8)) if rng.random() < 0.3 else None,
        scale=SCALES[rng.integers(len(SCALES))],
        policy=policies[rng.integers(len(policies))],
    )


def run(call: Call, query: Any, key: Any, value: Any) -> Any:
    return attention(
        query,
        key,
        value,
        None if call.bias is None else jnp.asarray(call.bias),
        jnp.asarray(call.visible),
        is_causal=call.causal,
        local_window_size=None if call.window is None else call.window - 1,
        scale=call.scale,
        policy=call.policy,
    )


def rows_first(call: Call) -> list[Any]:
    return [jnp.asarray(array.swapaxes(1, 2)) for array in (call.query, call.key, call.value)]


def check_answers(number: int) -> None:
    """Compare output and statistics of one case."""
    call = random_call(np.random.default_rng(number))
    output, stats = run(call, *rows_first(call))
    tolerance = 1e-13  # logits of at most 30, in float64
    for name in STATS:
        ours = np.asarray(getattr(stats, name)).swapaxes(1, 2)
        np.testing.assert_allclose(ours, getattr(call.truth, name), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        np.asarray(output).swapaxes(1, 2), call.truth.output, rtol=0, atol=100 * tolerance
    )


def check_gradients(number: int) -> None:
    """Compare the gradient along a random direction with central differences of the truth."""
    rng = np.random.default_rng(number)
    call = random_call(rng)
    call = replace(call, policy=SMOOTH)
    weight = rng.normal(size=call.truth.output.shape)
    moves = {name: rng.normal(size=getattr(call, name).shape) for name in ("query", "key", "value")}

    def moved(step: float) -> float:
        parts = {name: getattr(call, name) + step * move for name, move in moves.items()}
        return (replace(call, **parts).truth.output * weight).sum()

    def loss(*arrays: Any) -> Any:
        return (run(call, *arrays).output * weight.swapaxes(1, 2)).sum()

    expected = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    gradients = jax.grad(loss, (0, 1, 2))(*rows_first(call))
    found = sum(
        (np.asarray(gradient).swapaxes(1, 2) * move).sum()
        for gradient, move in zip(gradients, moves.values(), strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * (1 + abs(expected)))


@pytest.fixture(autouse=True)
def eager():
    with jax.disable_jit():
        yield


@pytest.mark.slow
def test_many_answers():
    for number in range(200):
        check_answers(number)


@pytest.mark.slow
def test_many_gradients():
    for number in range(40):
        check_gradients(number)
