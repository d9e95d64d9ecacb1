"""Inside real flax layers."""

from __future__ import annotations

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import sharpmax as sx
from sharpmax.jax import attention_fn


@pytest.fixture(autouse=True)
def standard_promotion():
    """flax itself needs it; and nothing here is about jit."""
    with jax.numpy_dtype_promotion("standard"), jax.disable_jit():
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


def inputs(*lead):
    return jax.random.normal(jax.random.key(1), (*lead, 11, 16), jnp.float64) * 4


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_plain_is_the_stock_layer(lead):
    x = inputs(*lead)
    for mask in (None, nnx.make_causal_mask(x[..., 0])):
        stock = layer()(x, mask=mask)
        ours = layer(attention_fn=attention_fn(sx.Constant(1.0)))(x, mask=mask)
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-5)  # its softmax is float32


def test_it_sharpens():
    x = inputs(2)
    plain = layer(attention_fn=attention_fn(sx.Constant(1.0)))(x)
    sharp = layer(attention_fn=attention_fn())(x)
    by_hand = layer(attention_fn=lambda q, k, v, **_: sx.jax.dot_product_attention(q, k, v))(x)
    assert not np.allclose(plain, sharp)
    np.testing.assert_array_equal(sharp, by_hand)


def test_causal_and_grouped():
    x = inputs(2)
    stock = layer(num_kv_heads=2)(x, is_causal=True)
    ours = layer(num_kv_heads=2, attention_fn=attention_fn(sx.Constant(1.0)))(x, is_causal=True)
    np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-5)


def test_it_trains():
    model = layer(attention_fn=attention_fn())
    x = inputs(2)
    gradients = nnx.grad(lambda model: (model(x) ** 2).sum())(model)
    for leaf in jax.tree.leaves(gradients):
        assert jnp.isfinite(leaf).all()
        assert (leaf != 0).any()


def test_linen_too():
    x = inputs(2)
    stock = flax.linen.MultiHeadDotProductAttention(num_heads=4, param_dtype=jnp.float64)
    ours = flax.linen.MultiHeadDotProductAttention(
        num_heads=4, param_dtype=jnp.float64, attention_fn=attention_fn(sx.Constant(1.0))
    )
    parameters = stock.init(jax.random.key(0), x)
    np.testing.assert_allclose(
        ours.apply(parameters, x), stock.apply(parameters, x), rtol=1e-5, atol=1e-5
    )


def test_what_it_cannot_do_is_named():
    x = inputs(2)
    with pytest.raises(NotImplementedError, match=r"dropout_rate=0\.5"):
        layer(attention_fn=attention_fn(), dropout_rate=0.5, deterministic=False)(
            x, rngs=nnx.Rngs(0)
        )
    layer(attention_fn=attention_fn(), dropout_rate=0.5, deterministic=True)(x)
    with pytest.raises(NotImplementedError, match="sow_weights=True"):
        layer(attention_fn=attention_fn())(x, sow_weights=True)
    with pytest.raises(NotImplementedError, match="precision="):
        layer(attention_fn=attention_fn(), precision="highest")(x)
