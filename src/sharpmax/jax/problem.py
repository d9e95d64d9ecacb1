"""Check the arguments of an attention call in JAX and bring them to one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from sharpmax import _array

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Inputs(NamedTuple):
    """Hold the arrays of a problem; the query heads that share a key head form a group."""

    query: Float[Array, "batch query kv_heads group dim"]
    key: Float[Array, "batch key kv_heads dim"]
    value: Float[Array, "batch key kv_heads value_dim"] | None
    bias: Float[Array, "#batch #kv_heads #group #query #key"] | None
    mask: Bool[Array, "#batch #kv_heads #group #query #key"] | None
    query_lengths: Int[Array, " batch"] | None
    key_lengths: Int[Array, " batch"] | None
    scale: Float[Array, ""]
    first_key: Int[Array, ""]
    """Position of the first key; more than 0 if the keys are a part of a longer sequence."""


@dataclass(frozen=True)
class Settings:
    """Hold the options that a program is compiled for."""

    causal: bool
    window: tuple[int, int] | None


def make_problem(
    query: Any,
    key: Any,
    value: Any | None,
    bias: Any | None,
    mask: Any | None,
    *,
    scale: float | None,
    is_causal: bool,
    query_seq_lengths: Any | None,
    key_value_seq_lengths: Any | None,
    local_window_size: int | tuple[int, int] | None,
) -> tuple[Inputs, Settings]:
    """Check the arguments of `jax.nn.dot_product_attention` and group the heads."""
    query, key = jnp.asarray(query), jnp.asarray(key)
    value = None if value is None else jnp.asarray(value)
    _check(query, key, value)
    if query.ndim == 3:
        query, key = query[None], key[None]
        value = None if value is None else value[None]
    batch, queries, heads, dim = query.shape
    keys, kv_heads = key.shape[1:3]
    shape = (batch, heads, queries, keys)
    group = heads // kv_heads if kv_heads else 1
    wide = _array.statistics_dtype("query", query, jnp)
    inputs = Inputs(
        query=query.reshape(batch, queries, kv_heads, group, dim),
        key=key,
        value=value,
        bias=_group_heads("bias", bias, shape, kv_heads, None),
        mask=_group_heads("mask", mask, shape, kv_heads, "bool"),
        query_lengths=_lengths("query_seq_lengths", query_seq_lengths, batch),
        key_lengths=_lengths("key_value_seq_lengths", key_value_seq_lengths, batch),
        scale=jnp.asarray(_array.logit_scale(None, dim) if scale is None else scale, wide),
        first_key=jnp.zeros((), jnp.int32),
    )
    return inputs, Settings(bool(is_causal), _window(local_window_size))


def _check(query: Array, key: Array, value: Array | None) -> None:
    """Refuse arrays whose types or shapes do not fit each other."""
    shapes = f"query {query.shape}, key {key.shape}"
    if value is not None:
        shapes += f", value {value.shape}"
    others = [array for array in (key, value) if array is not None]
    _array.statistics_dtype("query", query, jnp)
    if any(array.dtype != query.dtype for array in others):
        kinds = ", ".join(str(array.dtype) for array in (query, *others))
        raise TypeError(f"query, key and value are {kinds}: give them one type")
    if query.ndim not in (3, 4) or any(array.ndim != query.ndim for array in others):
        raise ValueError(f"{shapes}: expected [batch, length, heads, dim] or [length, heads, dim]")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"{shapes}: the last axes of query and key must be equal")
    if any(array.shape[:-3] != query.shape[:-3] for array in others):
        raise ValueError(f"{shapes}: the batch axes must be equal")
    if value is not None and value.shape[:-1] != key.shape[:-1]:
        raise ValueError(f"{shapes}: keys and values must be equal in number and in heads")
    heads, kv_heads = query.shape[-2], key.shape[-2]
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(
            f"{shapes}: {heads} query heads cannot share {kv_heads} key heads "
            "evenly; the number of query heads must be a multiple"
        )


def _group_heads(
    name: str, array: Any | None, shape: tuple[int, ...], kv_heads: int, kind: str | None
) -> Array | None:
    """Reshape a mask or bias to [batch, kv_heads, group, query, key], each axis possibly 1."""
    if array is None:
        return None
    array = jnp.asarray(array)
    if kind is not None and _array.dtype_name(array) != kind:
        raise TypeError(
            f"{name} must be boolean (True = may be seen), got {array.dtype}; an additive mask is "
            "given as bias"
        )
    if kind is None:
        _array.statistics_dtype(name, array, jnp)
    sizes = zip(reversed(shape), reversed(array.shape), strict=False)
    if array.ndim > 4 or not all(its in (1, size) for size, its in sizes):
        raise ValueError(
            f"{name} of shape {array.shape} does not fit the logits, {shape}: expected each axis "
            "equal or 1"
        )
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    heads = (kv_heads, shape[1] // kv_heads) if array.shape[1] > 1 else (1, 1)
    return array.reshape(array.shape[0], *heads, *array.shape[2:])


def _lengths(name: str, lengths: Any | None, batch: int) -> Array | None:
    if lengths is None:
        return None
    lengths = jnp.asarray(lengths)
    if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(
            f"{name} must be integers of shape ({batch},), got {lengths.dtype} of shape "
            f"{lengths.shape}"
        )
    return lengths.astype(jnp.int32)


def _window(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    window = (size, size) if isinstance(size, int) else tuple(size)
    if len(window) != 2 or not all(isinstance(side, int) and side >= 0 for side in window):
        raise ValueError(
            f"local_window_size must be a number of keys (0 or more) or (left, right), got {size!r}"
        )
    return window[0], window[1]
