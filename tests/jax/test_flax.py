"""Inside real flax layers."""

from __future__ import annotations

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import sharpmax as sx
from sharpmax.jax import attention_fn, dot_product_attention

PLAIN = attention_fn(sx.Constant(1.0))


@pytest.fixture(autouse=True)
def standard_promotion():
    """flax itself needs it."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def layer(**options):
    return nnx.MultiHeadAttention(
        num_heads=4,
        in_features=16,
        qkv_features=32,
        decode=False,
        param_dtype=jnp.float64,
        rngs=nnx.Rngs(0),
        **options,
    )


INPUTS = np.random.default_rng(1).normal(size=(2, 11, 16)) * 4


def run(attention=None, *, mask=None, is_causal=False, **options):
    """One layer, made and called in one compiled program, which is quicker than in many."""
    if attention is not None:
        options["attention_fn"] = attention

    @jax.jit
    def call(x):
        return layer(**options)(x, mask=mask, is_causal=is_causal)

    return call(INPUTS)


@pytest.mark.parametrize(
    "options",
    [{"mask": nnx.make_causal_mask(INPUTS[..., 0])}, {"is_causal": True, "num_kv_heads": 2}],
    ids=["masked", "causal and grouped"],
)
def test_plain_is_the_stock_layer(options):
    np.testing.assert_allclose(run(PLAIN, **options), run(**options), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shared_mask", [False, True])
def test_any_number_of_batch_axes(rng, shared_mask):
    """As one batch of all of them; the mask may have them too, or an axis of length 1."""
    arrays = [jnp.asarray(rng.normal(size=(2, 3, 5, 4, 8))) for _ in range(3)]
    mask = jnp.asarray(rng.random((1 if shared_mask else 2, 3, 1, 5, 5)) < 0.6)
    attend = attention_fn()
    together = attend(*arrays, mask=mask)
    flat = [array.reshape(6, 5, 4, 8) for array in arrays]
    full = jnp.broadcast_to(mask, (2, 3, 1, 5, 5)).reshape(6, 1, 5, 5)
    expected = dot_product_attention(*flat, mask=full)
    np.testing.assert_array_equal(together.reshape(expected.shape), expected)
    alone = attend(*(array[1, 2] for array in arrays), mask=full[5])
    np.testing.assert_allclose(alone, together[1, 2], rtol=1e-13, atol=1e-13)


def test_it_sharpens():
    def by_hand(query, key, value, **_):
        return dot_product_attention(query, key, value)

    sharp = run(attention_fn())
    np.testing.assert_allclose(sharp, run(by_hand), rtol=1e-13, atol=1e-13)


def test_it_trains():
    @jax.jit
    def gradients(x):
        model = layer(attention_fn=attention_fn())
        return jax.tree.leaves(nnx.grad(lambda model: (model(x) ** 2).sum())(model))

    for leaf in gradients(INPUTS):
        assert jnp.isfinite(leaf).all()
        assert (leaf != 0).any()


def test_linen_too():
    stock, ours = (
        flax.linen.MultiHeadDotProductAttention(num_heads=4, param_dtype=jnp.float64, **options)
        for options in ({}, {"attention_fn": PLAIN})
    )

    @jax.jit
    def both(x):
        parameters = stock.init(jax.random.key(0), x)
        return ours.apply(parameters, x), stock.apply(parameters, x)

    np.testing.assert_allclose(*both(INPUTS), rtol=1e-5, atol=1e-5)


def test_what_it_cannot_do_is_named():
    def shape(sow_weights=False, **options):
        """Traced only, which needs no compilation."""

        def call(x):
            attend = layer(attention_fn=PLAIN, **options)
            return attend(x, sow_weights=sow_weights, rngs=nnx.Rngs(0))

        return jax.eval_shape(call, INPUTS)

    with pytest.raises(NotImplementedError, match=r"dropout_rate=0\.5"):
        shape(dropout_rate=0.5, deterministic=False)
    assert shape(dropout_rate=0.5, deterministic=True).shape == (2, 11, 16)
    with pytest.raises(NotImplementedError, match="sow_weights=True"):
        shape(sow_weights=True)
    with pytest.raises(NotImplementedError, match="precision="):
        shape(precision="highest")
