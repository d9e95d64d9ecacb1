"""JAX attention is attention to the visible keys, under every transformation."""

from __future__ import annotations

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import sharpmax as sx
import truth
from sharpmax.jax import attention, attention_stats, blocks, dot_product_attention

STATS = ("entropy", "log_sum_exp", "max_logit", "min_logit", "count", "inverse_temperature")
PLAIN = sx.Constant(1.0)
SMOOTH = sx.Polynomial((0.1, 0.3, 0.9), threshold=0.2)


@pytest.fixture(autouse=True, scope="module")
def many_blocks():
    """Blocks so small that most problems here have several, the last one not full."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 1200)
        patch.setattr(blocks, "FEWEST_ROWS", 2)
        yield
    jax.clear_caches()


def make(rng, queries, keys, *, kv_heads=4, batch=2, dim=8, spread=3.0):
    """[batch, length, heads, dim], as JAX has it."""
    query = rng.normal(size=(batch, queries, 4, dim)) * spread
    key = rng.normal(size=(batch, keys, kv_heads, dim))
    value = rng.normal(size=(batch, keys, kv_heads, dim))
    return query, key, value


def heads_first(array):
    return np.swapaxes(np.asarray(array), 1, 2)


def mask_of(rng, kind, queries, keys):
    if kind == "none":
        return {}, {}
    if kind == "bias":
        bias = rng.normal(size=(4, queries, keys))
        bias[:, rng.random((queries, keys)) < 0.3] = -np.inf
        return {"bias": bias}, {"bias": bias}
    shape = {"padding": (2, 1, 1, keys), "rows": (queries, keys), "heads": (1, 4, queries, keys)}
    visible = rng.random(shape[kind]) < 0.6
    if kind != "padding":
        visible[..., 0, :] = False
    return {"mask": visible}, {"visible": visible}


CASES = [
    *itertools.product([(13, 29, 2)], ["none", "padding", "rows", "heads", "bias"], [False, True]),
    *itertools.product([(29, 13, 4)], ["padding", "rows", "bias"], [True]),
    *itertools.product([(1, 1, 4), (1, 19, 2), (7, 7, 1)], ["none", "rows"], [True]),
    *itertools.product([(40, 40, 2)], ["none", "rows"], [True]),
]


@pytest.mark.parametrize(("sizes", "kind", "causal"), CASES)
def test_equals_attention_to_the_visible_keys(rng, sizes, kind, causal):
    queries, keys, kv_heads = sizes
    arrays = make(rng, queries, keys, kv_heads=kv_heads)
    given, meaning = mask_of(rng, kind, queries, keys)
    expected = truth.attention(*map(heads_first, arrays), **meaning, causal=causal)
    output, stats = attention(*arrays, **given, is_causal=causal)
    np.testing.assert_allclose(heads_first(output), expected.output, rtol=0, atol=1e-12)
    for name in STATS:
        ours = heads_first(getattr(stats, name))
        np.testing.assert_allclose(ours, getattr(expected, name), rtol=1e-12, atol=1e-12)


def test_statistics_alone_are_the_same(rng):
    query, key, value = make(rng, 13, 29, kv_heads=2)
    mask = rng.random((13, 29)) < 0.6
    alone = attention_stats(query, key, mask=mask, is_causal=True)
    both = attention(query, key, value, mask=mask, is_causal=True).stats
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-13), alone, both)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"local_window_size": 3},
        {"local_window_size": (5, 0), "is_causal": True},
        {"key_value_seq_lengths": np.array([29, 11], np.int32)},
        {
            "query_seq_lengths": np.array([13, 4], np.int32),
            "key_value_seq_lengths": np.array([7, 29], np.int32),
        },
        {"bias": True},
        {"mask": True},
        {"bias": True, "mask": True, "is_causal": True},
    ],
    ids=str,
)
def test_without_sharpening_it_is_jax_s_own(rng, options):
    arrays = [jnp.asarray(array, jnp.float32) for array in make(rng, 13, 29, kv_heads=2)]
    options = dict(options)
    if "bias" in options:
        options["bias"] = jnp.asarray(rng.normal(size=(1, 4, 13, 29)), jnp.float32)
    if "mask" in options:
        visible = rng.random((2, 1, 13, 29)) < 0.6
        visible[..., 0] = True  # jax.nn averages all values where nothing is visible
        options["mask"] = jnp.asarray(visible)
    with jax.numpy_dtype_promotion("standard"):  # which jax.nn needs
        theirs = jax.nn.dot_product_attention(*arrays, **options, return_residual=True)
    ours = dot_product_attention(*arrays, **options, return_residual=True, policy=PLAIN)
    for one, other in zip(ours, theirs, strict=True):
        seen = np.isfinite(np.asarray(ours[1])) & (np.asarray(theirs[1]) > -1e30)
        np.testing.assert_allclose(
            np.asarray(one)[seen], np.asarray(other)[seen], rtol=2e-5, atol=2e-6
        )
        assert one.dtype == other.dtype
    alone = dot_product_attention(*arrays, **options, policy=PLAIN)
    np.testing.assert_allclose(alone, ours[0], rtol=2e-5, atol=2e-6)


def test_the_residual_is_that_of_the_sharpened_row(rng):
    query, key, value = make(rng, 5, 9)
    output, residual = dot_product_attention(query, key, value, return_residual=True)
    factor = np.asarray(attention_stats(query, key).inverse_temperature)
    plain = dot_product_attention(
        query * factor[..., None], key, value, return_residual=True, policy=PLAIN
    )
    np.testing.assert_allclose(output, plain[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(residual, plain[1], rtol=0, atol=1e-13)
    assert (factor > 1).any()


def test_one_sequence_without_a_batch(rng):
    query, key, value = make(rng, 13, 29, kv_heads=2)
    both = attention(query, key, value, is_causal=True)
    alone = attention(query[1], key[1], value[1], is_causal=True)
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one[1], two, rtol=0, atol=1e-13), both, alone
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_lower_precision(rng, dtype):
    arrays = [jnp.asarray(array, dtype) for array in make(rng, 13, 29)]
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
    query, key, value = (jnp.asarray(array) for array in make(rng, 13, 29))
    eager = attention(query, key, value, is_causal=True)
    jitted = jax.jit(lambda *arrays: attention(*arrays, is_causal=True))(query, key, value)
    mapped = jax.vmap(lambda *arrays: attention(*arrays, is_causal=True))(query, key, value)
    for other in (jitted, mapped):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-13), eager, other
        )


@pytest.mark.parametrize("causal", [False, True])
def test_gradients(rng, causal):
    arrays = [jnp.asarray(array) for array in make(rng, 7, 9, kv_heads=2, batch=1, dim=3, spread=1)]
    mask = rng.random((7, 9)) < 0.7
    mask[3] = False

    def attend(query, key, value):
        found = attention(query, key, value, mask=mask, is_causal=causal, policy=SMOOTH)
        total = jnp.where(found.stats.count > 0, found.stats.log_sum_exp, 0.0)
        return found.output, found.stats.entropy, total, found.stats.max_weight

    check_grads(attend, arrays, order=1, modes=("rev",), eps=1e-6)


def test_second_and_forward_derivatives(rng):
    arrays = [jnp.asarray(array) for array in make(rng, 7, 9, kv_heads=2, batch=1, dim=3, spread=1)]
    check_grads(lambda *a: dot_product_attention(*a, policy=SMOOTH), arrays, order=2, eps=1e-4)


def test_a_row_that_sees_nothing(rng):
    query, key, value = (jnp.asarray(array) for array in make(rng, 9, 9))
    mask = np.ones((9, 9), bool)
    mask[[0, 4, 8]] = False

    def loss(*arrays):
        output, stats = attention(*arrays, mask=mask)
        return (output**2).sum() + stats.entropy.sum() + stats.max_weight.sum(), (output, stats)

    gradients, (output, stats) = jax.grad(loss, (0, 1, 2), has_aux=True)(query, key, value)
    empty = np.array([0, 4, 8])
    assert (output[:, empty] == 0).all()
    assert (stats.entropy[:, empty] == 0).all()
    assert (stats.count[:, empty] == 0).all()
    assert (stats.spread[:, empty] == 0).all()
    assert (stats.effective_items[:, empty] == 0).all()
    for gradient in gradients:
        assert jnp.isfinite(gradient).all()
    assert (gradients[0][:, empty] == 0).all()


def test_a_policy_may_be_learned(rng):
    """It is read at each call: one that is not frozen is never compiled into a program."""
    arrays = [jnp.asarray(array) for array in make(rng, 5, 9)]

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


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_block_and_not_with_the_square(monkeypatch, causal, backward):
    monkeypatch.setattr(blocks, "BLOCK", 1 << 15)
    tokens, heads = 1024, 2
    shape = jax.ShapeDtypeStruct((1, tokens, heads, 8), jnp.float32)

    def loss(*arrays):
        return dot_product_attention(*arrays, is_causal=causal).sum()

    function = jax.grad(loss, (0, 1, 2)) if backward else loss
    jax.clear_caches()
    compiled = jax.jit(function).lower(shape, shape, shape).compile()
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


def test_the_number_of_blocks_does_not_matter(monkeypatch, rng):
    arrays = make(rng, 40, 40, kv_heads=2)
    answers = []
    for block, causal in itertools.product((1500, 10**6), (False, True)):
        monkeypatch.setattr(blocks, "BLOCK", block)
        jax.clear_caches()
        answers.append(attention(*arrays, is_causal=causal).output)
    for start in range(2):
        for other in answers[start::2]:
            np.testing.assert_allclose(other, answers[start], rtol=0, atol=1e-13)
    assert math.isfinite(float(answers[0].sum()))
