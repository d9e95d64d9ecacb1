"""Adaptive temperature inside the attention layers of flax, which is not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from sharpmax.jax.api import dot_product_attention
from sharpmax.policies import PAPER, Policy

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


def attention_fn(policy: Policy = PAPER) -> Callable[..., Array]:
    """Make an `attention_fn` for flax's MultiHeadAttention (NNX or Linen) with a policy.

    The function refuses dropout on the weights, sowing them into the module and a precision other
    than the default, since it never holds the matrix of weights.

    Args:
        policy: function of (entropy, number of keys) that returns the inverse temperature.

    Returns:
        A function with the arguments that flax passes to its `attention_fn`.

    Examples:
        >>> nnx.MultiHeadAttention(..., attention_fn=sharpmax.jax.attention_fn())
    """

    def attend(
        query: Float[Array, "*batch query heads dim"],
        key: Float[Array, "*batch key kv_heads dim"],
        value: Float[Array, "*batch key kv_heads value_dim"],
        bias: Float[Array, "..."] | None = None,
        mask: Shaped[Array, "..."] | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        promote_dtype: Any = None,
        is_causal: bool = False,
    ) -> Float[Array, "*batch query heads value_dim"]:
        if dropout_rate and not deterministic:
            raise NotImplementedError(
                f"dropout_rate={dropout_rate} on attention weights is not supported; use "
                "deterministic=True or dropout_rate=0"
            )
        if module is not None:
            raise NotImplementedError(
                "sow_weights=True is not supported: the weights are never held as a matrix; "
                "sharpmax.jax.attention returns the statistics of each row"
            )
        if precision is not None:
            raise NotImplementedError(f"precision={precision!r} is not supported; use None")
        if dtype is not None:
            query, key, value = (array.astype(dtype) for array in (query, key, value))
        lead = query.shape[:-3]
        query, key, value = (array.reshape(-1, *array.shape[-3:]) for array in (query, key, value))
        bias, mask = (_fold_batch_axes(array, lead) for array in (bias, mask))
        if mask is not None:
            mask = mask.astype(bool)
        output = dot_product_attention(
            query, key, value, bias, mask, is_causal=is_causal, policy=policy
        )
        return output.reshape(*lead, *output.shape[1:])

    return attend


def _fold_batch_axes(array: Array | None, lead: tuple[int, ...]) -> Array | None:
    """Merge the batch axes of a mask, which may be missing or have length 1."""
    if array is None or len(lead) <= 1:
        return array
    full = jnp.broadcast_to(array, (*lead, *array.shape[-3:]))
    return full.reshape(-1, *array.shape[-3:])
