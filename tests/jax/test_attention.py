"""JAX attention is attention to the visible keys, under every transformation.

Many tests run without jit on one shape: each operation is then compiled once and serves all cases,
where a compiled program would serve one. Compiled programs, of several blocks, have their own tests.
"""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

import sharpmax as sx
import truth
from sharpmax.jax import api, attention, attention_stats, blocks, dot_product_attention
from strategies import GENERATOR

STATS = (
    *("entropy", "log_sum_exp", "max_logit", "min_logit", "count", "inverse_temperature"),
    "varentropy",
)
PLAIN = sx.Constant(1.0)
SMOOTH = sx.Polynomial((0.1, 0.3, 0.9), threshold=0.2)
LONG, SHORT = (13, 29, 2), (9, 5, 1)
"""Queries, keys, key heads: of several blocks, and of one with more queries than keys."""
MASKS = ("none", "padding", "rows", "heads", "bias")


@pytest.fixture(autouse=True, scope="module")
def many_blocks():
    """Blocks so small that most problems here have several, the last one not full."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 1200)
        patch.setattr(blocks, "FEWEST_ROWS", 2)
        yield
    jax.clear_caches()


@pytest.fixture
def eager():
    with jax.disable_jit():
        yield


def make(rng, queries, keys, kv_heads, *, batch=2, dim=8, spread=3.0):
    """[batch, length, heads, dim], as JAX has it."""
    query = rng.normal(size=(batch, queries, 4, dim)) * spread
    key = rng.normal(size=(batch, keys, kv_heads, dim))
    value = rng.normal(size=(batch, keys, kv_heads, dim))
    return query, key, value


def heads_first(array):
    return np.swapaxes(np.asarray(array), 1, 2)


def mask_of(rng, kind, queries, keys):
    """Arguments for a mask of this kind, and what they mean to the slow attention."""
    if kind == "none":
        return {}, {}
    if kind == "bias":
        bias = rng.normal(size=(4, queries, keys))
        bias[:, rng.random((queries, keys)) < 0.3] = -np.inf
        given = bias.copy()
        given[:2] = np.where(
            np.isinf(bias[:2]), np.finfo(np.float64).min, bias[:2]
        )  # hides as well
        return {"bias": given}, {"bias": bias}
    shape = {"padding": (2, 1, 1, keys), "rows": (queries, keys), "heads": (1, 4, queries, keys)}
    visible = rng.random(shape[kind]) < 0.6
    if kind != "padding":
        visible[..., 0, :] = False
    return {"mask": visible}, {"visible": visible}


def assert_close(ours, theirs, tolerance=1e-13):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs
    )


@given(
    rng=GENERATOR,
    kind=st.sampled_from(MASKS),
    causal=st.booleans(),
    scale=st.sampled_from([None, 0.2]),
    window=st.sampled_from([None, None, 4]),
)
@settings(max_examples=36)
def test_equals_attention_to_the_visible_keys(rng, kind, causal, scale, window):
    arrays = make(rng, *SHORT)
    masks, meaning = mask_of(rng, kind, *SHORT[:2])
    options = {**masks, "is_causal": causal, "scale": scale}
    if window is not None:
        options["local_window_size"] = window - 1  # JAX does not count the query itself
    with jax.disable_jit():
        answer = attention(*arrays, **options)
        alone = attention_stats(*arrays[:2], **options)
    assert_true(answer, arrays, **meaning, causal=causal, scale=scale, window=window)
    assert_close(alone, answer.stats)


@functools.cache
def compiled(causal):
    """A program for LONG and any mask; a causal one in four parts of two blocks each."""

    @jax.jit
    def attend(query, key, value, bias, mask, scale):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "BLOCK", 400)
            return attention(query, key, value, bias, mask, scale=scale, is_causal=causal)

    return attend


@given(
    rng=GENERATOR,
    kind=st.sampled_from(MASKS),
    causal=st.booleans(),
    scale=st.sampled_from([8**-0.5, 0.2]),
)
@settings(max_examples=30)
def test_a_compiled_program_of_several_blocks_does_too(rng, kind, causal, scale):
    arrays = make(rng, *LONG)
    _, meaning = mask_of(rng, kind, *LONG[:2])
    full = (2, 4, *LONG[:2])
    bias = np.broadcast_to(meaning.get("bias", 0.0), full)
    mask = np.broadcast_to(meaning.get("visible", True), full)
    answer = compiled(causal)(*arrays, bias, mask, scale)
    assert_true(answer, arrays, **meaning, causal=causal, scale=scale)


def test_one_query(rng):
    arrays = make(rng, 1, 19, 2)
    assert_true(attention(*arrays), arrays)


def assert_true(answer, arrays, **meaning):
    """Equal to attention computed one row at a time."""
    expected = truth.attention(*map(heads_first, arrays), **meaning)
    np.testing.assert_allclose(heads_first(answer.output), expected.output, rtol=0, atol=1e-12)
    for name in STATS:
        ours = heads_first(getattr(answer.stats, name))
        np.testing.assert_allclose(ours, getattr(expected, name), rtol=1e-12, atol=1e-12)


def lengths(most):
    return st.none() | st.tuples(st.integers(1, most), st.just(most))


@given(
    rng=GENERATOR,
    causal=st.booleans(),
    biased=st.booleans(),
    masked=st.booleans(),
    scale=st.sampled_from([None, 0.3]),
    window=st.sampled_from([None, 3, (5, 0), (0, 2)]),
    query_lengths=lengths(9),
    key_lengths=lengths(5),
)
@settings(max_examples=20)
def test_without_sharpening_it_is_jax_s_own(
    rng, causal, biased, masked, scale, window, query_lengths, key_lengths
):
    arrays = [jnp.asarray(array, jnp.float32) for array in make(rng, *SHORT)]
    options = {"is_causal": causal, "scale": scale, "local_window_size": window}
    if biased:
        options["bias"] = jnp.asarray(rng.normal(size=(1, 4, 9, 5)), jnp.float32)
    if masked:
        options["mask"] = jnp.asarray(rng.random((2, 1, 9, 5)) < 0.6)
    if query_lengths is not None:
        options["query_seq_lengths"] = np.array(query_lengths, np.int32)
    if key_lengths is not None:
        options["key_value_seq_lengths"] = np.array(key_lengths, np.int32)
    with jax.disable_jit():
        with jax.numpy_dtype_promotion("standard"):  # which jax.nn needs
            theirs = jax.nn.dot_product_attention(*arrays, **options, return_residual=True)
        ours = dot_product_attention(*arrays, **options, return_residual=True, policy=PLAIN)
        alone = dot_product_attention(*arrays, **options, policy=PLAIN)
    # Where nothing is visible, jax.nn has a very low residual and averages all values.
    seen = np.isfinite(np.asarray(ours[1]))
    np.testing.assert_array_equal(seen, np.asarray(theirs[1]) > -1e30)
    for mine, its in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            np.asarray(mine)[seen], np.asarray(its)[seen], rtol=2e-5, atol=2e-6
        )
        assert mine.dtype == its.dtype
    np.testing.assert_allclose(alone, ours[0], rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("eager")
def test_the_residual_is_that_of_the_sharpened_row(rng):
    query, key, value = make(rng, *SHORT)
    output, residual = dot_product_attention(query, key, value, return_residual=True)
    factor = np.asarray(attention_stats(query, key).inverse_temperature)
    plain = dot_product_attention(
        query * factor[..., None], key, value, return_residual=True, policy=PLAIN
    )
    assert_close((output, residual), plain)
    assert (factor > 1).any()


def test_one_sequence_without_a_batch(rng):
    query, key, value = make(rng, *SHORT)
    both = attention(query, key, value, is_causal=True)
    alone = attention(query[1], key[1], value[1], is_causal=True)
    assert_close(jax.tree.map(lambda array: array[1], both), alone)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_lower_precision(rng, dtype):
    arrays = [jnp.asarray(array, dtype) for array in make(rng, *SHORT)]
    exact = attention(*(array.astype(jnp.float64) for array in arrays))
    output, stats = attention(*arrays)
    assert output.dtype == dtype
    assert stats.entropy.dtype == jnp.float32
    # A logit of 40 in float32 is good to 40 * 6e-8, a sum of them to a few times that.
    np.testing.assert_allclose(stats.entropy, exact.stats.entropy, rtol=0, atol=5e-5)
    unit = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(
        output.astype(jnp.float64), exact.output, rtol=unit, atol=unit + 2e-4
    )


def test_jit_vmap_and_eager_agree(rng):
    arrays = [jnp.asarray(array) for array in make(rng, *SHORT)]
    mask = rng.random(SHORT[:2]) < 0.6

    def attend(*arrays):
        return attention(*arrays, mask=mask, is_causal=True)

    with jax.disable_jit():
        eager = attend(*arrays)
    assert_close(attend(*arrays), eager)  # compiled by itself
    assert_close(jax.jit(jax.vmap(attend))(*arrays), eager)


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_gradients(rng, monkeypatch, causal):
    """Of four blocks, each computed again on the way back."""
    monkeypatch.setattr(blocks, "BLOCK", 72)
    arrays = [jnp.asarray(array) for array in make(rng, 7, 9, 2, batch=1, dim=3, spread=1)]
    mask = rng.random((7, 9)) < 0.7
    mask[3] = False

    @jax.jit
    def attend(query, key, value):
        answer = attention(query, key, value, mask=mask, is_causal=causal, policy=SMOOTH)
        total = jnp.where(answer.stats.count > 0, answer.stats.log_sum_exp, 0.0)
        return answer.output, answer.stats.entropy, total, answer.stats.max_weight

    check_grads(attend, arrays, order=1, modes=("rev",), eps=1e-6)


@pytest.mark.slow
def test_second_and_forward_derivatives(rng):
    arrays = [jnp.asarray(array) for array in make(rng, 7, 9, 2, batch=1, dim=3, spread=1)]
    check_grads(lambda *a: dot_product_attention(*a, policy=SMOOTH), arrays, order=2, eps=1e-4)


def test_a_row_that_sees_nothing(rng):
    query, key, value = (jnp.asarray(array) for array in make(rng, *SHORT))
    mask = np.ones((9, 5), bool)
    empty = np.array([0, 4, 8])
    mask[empty] = False

    def loss(*arrays):
        output, stats = attention(*arrays, mask=mask)
        return (output**2).sum() + stats.entropy.sum() + stats.max_weight.sum(), (output, stats)

    differentiate = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
    gradients, (output, stats) = differentiate(query, key, value)
    assert (output[:, empty] == 0).all()
    assert (stats.entropy[:, empty] == 0).all()
    assert (stats.count[:, empty] == 0).all()
    assert (stats.spread[:, empty] == 0).all()
    assert (stats.effective_items[:, empty] == 0).all()
    for gradient in gradients:
        assert jnp.isfinite(gradient).all()
    assert (gradients[0][:, empty] == 0).all()


def test_only_a_policy_that_cannot_change_is_compiled_into_a_program(monkeypatch):
    monkeypatch.setattr(api, "_compiled", lambda *arguments: "compiled")
    monkeypatch.setattr(api, "_run", lambda *arguments: "traced")

    class Changing:
        peaks = ()

        def __call__(self, entropy, count):
            return 1.0

    for policy in (sx.PAPER, sx.LogLength(8), PLAIN, sx.Saturating(sx.PAPER)):
        assert api._attend(None, None, policy, "output") == "compiled"
    for policy in (Changing(), sx.Saturating(Changing()), lambda entropy, count: 1.0):
        assert api._attend(None, None, policy, "output") == "traced"


@pytest.mark.usefixtures("eager")
def test_a_policy_may_be_learned(rng):
    arrays = [jnp.asarray(array) for array in make(rng, *SHORT)]

    class Slope:
        value = 0.5

        def __call__(self, entropy, count):
            return 1 + self.value * entropy

    policy = Slope()
    first = dot_product_attention(*arrays, policy=policy)
    policy.value = 2.0
    second = dot_product_attention(*arrays, policy=policy)
    assert not np.allclose(first, second)

    def loss(slope):
        return dot_product_attention(*arrays, policy=lambda h, n: 1 + slope * h)[0, 0, 0, 0]

    step = 1e-6
    difference = (loss(0.5 + step) - loss(0.5 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(loss)(0.5), difference, rtol=1e-6)


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_memory_grows_with_the_block_and_not_with_the_square(monkeypatch, causal):
    """Forwards and backwards, which needs more."""
    monkeypatch.setattr(blocks, "BLOCK", 1 << 15)
    tokens, heads = 1024, 2
    shape = jax.ShapeDtypeStruct((1, tokens, heads, 8), jnp.float32)

    def loss(*arrays):
        return dot_product_attention(*arrays, is_causal=causal).sum()

    jax.clear_caches()
    compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(shape, shape, shape).compile()
    matrix = 4 * heads * tokens**2
    assert compiled.memory_analysis().temp_size_in_bytes < matrix / 4


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": (2, 9, 4, 7)}, ValueError, "the last axes of query and key must be equal"),
        ({"value": (2, 8, 4, 8)}, ValueError, "keys and values must be equal in number"),
        ({"key": (2, 9, 3, 8), "value": (2, 9, 3, 8)}, ValueError, "cannot share 3 key heads"),
        (
            {"key": (9, 4, 8), "value": (9, 4, 8)},
            ValueError,
            "expected [batch, length, heads, dim]",
        ),
        ({"key": (3, 9, 4, 8), "value": (3, 9, 4, 8)}, ValueError, "the batch axes must be equal"),
        ({"mask": np.ones((5, 8), bool)}, ValueError, "mask of shape (5, 8) does not fit"),
        ({"mask": np.ones((5, 9))}, TypeError, "mask must be boolean (True = may be seen)"),
        ({"bias": np.ones((5, 9), int)}, TypeError, "bias must have a floating type"),
        ({"key": np.ones((2, 9, 4, 8), np.float32)}, TypeError, "give them one type"),
        ({"implementation": "cudnn"}, NotImplementedError, "implementation='cudnn' is not"),
        ({"local_window_size": -1}, ValueError, "local_window_size must be a number of keys"),
        ({"query_seq_lengths": np.ones(3, np.int32)}, ValueError, "of shape (2,), got int32"),
    ],
)
def test_mistakes_are_explained_in_one_sentence(change, error, message):
    call = {"query": (2, 5, 4, 8), "key": (2, 9, 4, 8), "value": (2, 9, 4, 8)} | change
    call = {
        name: jnp.ones(value)
        if name in ("query", "key", "value") and isinstance(value, tuple)
        else value
        for name, value in call.items()
    }
    with pytest.raises(error, match=re.escape(message)) as caught:
        dot_product_attention(**call)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_number_of_blocks_does_not_matter(monkeypatch, rng):
    arrays = make(rng, *SHORT)
    answers = []
    for block in (80, 10**6):
        monkeypatch.setattr(blocks, "BLOCK", block)
        jax.clear_caches()
        answers.append(attention(*arrays, is_causal=True))
    assert_close(*answers)


@pytest.mark.parametrize(("queries", "keys", "heads", "dim"), [
    (0, 3, 2, 4), (5, 0, 2, 4), (5, 3, 0, 4), (5, 3, 2, 0), (0, 0, 0, 0),
])  # fmt: skip
def test_any_axis_may_be_empty(eager, queries, keys, heads, dim):
    query, key = jnp.ones((1, queries, heads, dim)), jnp.ones((1, keys, heads, dim))
    output, stats = attention(query, key, key, is_causal=True)
    assert output.shape == query.shape
    assert stats.count.shape == query.shape[:-1]
    if keys == 0:
        assert (output == 0).all()


def test_a_row_that_sees_nothing_is_zero_whatever_the_values_are(rng, eager):
    query, key, value = map(jnp.asarray, make(rng, 4, 6, 2))
    mask = jnp.ones((4, 6), bool).at[2].set(False)
    output = dot_product_attention(query, key, value.at[:, 1].set(jnp.nan), mask=mask)
    assert (output[:, 2] == 0).all()
    assert jnp.isnan(output[:, 3]).all()


def test_which_numbers_of_a_bias_hide_a_key(rng, eager):
    """As for tensors; NaN is visible and spoils its row."""
    query, key, value = make(rng, 4, 6, 2)
    bias = np.zeros((4, 6), np.float32)
    bias[0] = [-np.inf, np.finfo(np.float32).min, -3e38, -1e38, -9e37, 0]
    bias[1], bias[2, 3] = -3e38, np.nan
    arrays = (jnp.asarray(array, jnp.float32) for array in (query, key, value, bias))
    output, stats = attention(*arrays)
    assert (stats.count[:, 0] == 2).all()
    assert (stats.count[:, 1] == 0).all()
    assert (output[:, 1] == 0).all()
    assert jnp.isnan(output[:, 2]).all()
    assert jnp.isfinite(output[:, [0, 1, 3]]).all()
