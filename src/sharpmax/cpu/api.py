"""Attention functions for NumPy arrays, with the shapes and arguments of `sharpmax.torch`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sharpmax import _array
from sharpmax.cpu import blockwise
from sharpmax.cpu.blockwise import Arrays
from sharpmax.cpu.threads import usable_cores
from sharpmax.policies import PAPER, Policy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    # Any shape that broadcasts to the logits, [*batch, heads, query, key].
    Mask = Bool[np.ndarray, "..."] | Float[np.ndarray, "..."]

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Stats:
    """Statistics of each row of logits before sharpening, [*batch, heads, query], in float32.

    Attributes:
        entropy: Entropy of the softmax over the visible keys, in nats; 0 without visible keys.
        log_sum_exp: log of the sum of exp(logit) over the visible keys; -inf without any.
        count: Number of keys that the query can see.
        inverse_temperature: The factor on the row's logits that the policy returned.
        max_logit: The largest visible logit; -inf without visible keys.
        min_logit: The smallest visible logit; +inf without visible keys.
        varentropy: Variance of log p under the softmax p, in square nats; 0 without visible keys.
            The entropy falls by this much per unit of log(inverse temperature).
    """

    entropy: Float[np.ndarray, "*batch_heads query"]
    log_sum_exp: Float[np.ndarray, "*batch_heads query"]
    count: Int[np.ndarray, "*batch_heads query"]
    inverse_temperature: Float[np.ndarray, "*batch_heads query"]
    max_logit: Float[np.ndarray, "*batch_heads query"]
    min_logit: Float[np.ndarray, "*batch_heads query"]
    varentropy: Float[np.ndarray, "*batch_heads query"]


class Attended(NamedTuple):
    """Output and statistics, as `attention` returns them.

    Attributes:
        output: The attention output, [*batch, heads, query, value_dim], in the input's type.
        stats: Statistics of each row.
    """

    output: Float[np.ndarray, "*batch_heads query value_dim"]
    stats: Stats


def attention(
    query: Float[np.ndarray, "*batch_heads query dim"],
    key: Float[np.ndarray, "*kv_batch_heads key dim"],
    value: Float[np.ndarray, "*kv_batch_heads key value_dim"],
    *,
    attn_mask: Mask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    sinks: Float[np.ndarray, " heads"] | None = None,
    window: int | None = None,
    policy: Policy = PAPER,
    threads: int | None = None,
) -> Attended:
    """Compute attention whose rows are sharpened according to their entropy, with statistics.

        output_i = sum_j softmax_j(b_i * s_ij) * v_j,    b_i = policy(H_i, n_i)
        s_ij = scale * <q_i, k_j>, with a softcap c * tanh(s_ij / c), plus the additive mask

    H_i is the entropy of softmax(s_i) in nats and n_i the number of keys that query i can see.
    This is `sharpmax.torch.attention` without torch.

    Args:
        query: [*batch, heads, query, dim], float32 or float16. Batch and heads may be missing.
        key: [*batch, kv_heads, key, dim].
        value: [*batch, kv_heads, key, value_dim].
        attn_mask: Any shape that broadcasts to [*batch, heads, query, key]. Boolean: True where a
            key may be seen. Floating: added to the logit and sharpened with it; -1e38 or less, and
            the lowest number of its type, hide the key.
        is_causal: Query i sees keys 0 to i. May be combined with a mask.
        scale: Factor on the products; by default 1 / sqrt(dim).
        enable_gqa: Let query heads share key heads.
        softcap: Replace a logit s by softcap * tanh(s / softcap), before the mask is added.
        sinks: One logit per head that takes part in the normalisation and is not sharpened.
        window: Query i sees only keys less than this far from i.
        policy: Function of (entropy, count) that returns the inverse temperature of each row.
        threads: Number of threads; by default one per core that this process may use.

    Returns:
        The output in the type of the query, and statistics in float32.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit, or a number is out of range.

    Examples:
        >>> q, k, v = np.random.default_rng(0).normal(size=(3, 8, 100, 64)).astype(np.float32)
        >>> output, stats = attention(q, k, v, is_causal=True)
        >>> stats.entropy.shape
        (8, 100)
    """
    arrays = _prepare_arrays(query, key, value, attn_mask, enable_gqa, sinks)._replace(
        causal=bool(is_causal),
        scale=_array.logit_scale(scale, query.shape[-1]),
        softcap=None if softcap is None else _array.positive_number("softcap", softcap),
        window=_array.optional_count("window", window),
    )
    answer = blockwise.attend(arrays, policy, _count_threads(threads), stats=True)
    assert answer.output is not None
    rows = query.shape[:-1]
    output = answer.output.reshape(*rows, value.shape[-1]).astype(query.dtype, copy=False)
    return Attended(output, Stats(*(array.reshape(rows) for array in answer.stats)))


def attention_stats(
    query: Float[np.ndarray, "*batch_heads query dim"],
    key: Float[np.ndarray, "*kv_batch_heads key dim"],
    *,
    attn_mask: Mask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    window: int | None = None,
    policy: Policy = PAPER,
    threads: int | None = None,
) -> Stats:
    """Measure how dispersed each row of attention is, without computing the output.

    Args:
        query: [*batch, heads, query, dim], float32 or float16. Batch and heads may be missing.
        key: [*batch, kv_heads, key, dim].
        attn_mask: Boolean (True where a key may be seen) or added to the logits.
        is_causal: Query i sees keys 0 to i. May be combined with a mask.
        scale: Factor on the products; by default 1 / sqrt(dim).
        enable_gqa: Let query heads share key heads.
        softcap: Replace a logit s by softcap * tanh(s / softcap).
        window: Query i sees only keys less than this far from i.
        policy: Function of (entropy, count); its answer is reported as `inverse_temperature`.
        threads: Number of threads; by default one per core that this process may use.

    Returns:
        Statistics of each row before sharpening.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit, or a number is out of range.
    """
    arrays = _prepare_arrays(query, key, None, attn_mask, enable_gqa, None)._replace(
        causal=bool(is_causal),
        scale=_array.logit_scale(scale, query.shape[-1]),
        softcap=None if softcap is None else _array.positive_number("softcap", softcap),
        window=_array.optional_count("window", window),
    )
    answer = blockwise.attend(arrays, policy, _count_threads(threads), stats=True)
    return Stats(*(array.reshape(query.shape[:-1]) for array in answer.stats))


def _prepare_arrays(
    query: Any, key: Any, value: Any, mask: Any, enable_gqa: bool, sinks: Any
) -> Arrays:
    """Check shapes and types; bring the arrays to one layout."""
    heads, kv_heads = _count_heads(query, key, value, enable_gqa)
    queries, keys = query.shape[-2], key.shape[-2]
    group = heads // kv_heads if kv_heads else 1
    rows = (math.prod(query.shape[:-3]), kv_heads, group, queries)

    def to_four_axes(array: Any) -> Any:
        shape = (rows[0], kv_heads, *array.shape[-2:])
        return np.ascontiguousarray(array, np.float32).reshape(shape)

    arrays = Arrays(
        query.astype(np.float32, copy=False).reshape(*rows, query.shape[-1]),
        to_four_axes(key),
        None if value is None else to_four_axes(value),
    )
    if sinks is not None:
        if np.shape(sinks) != (heads,):
            raise ValueError(
                f"sinks of shape {np.shape(sinks)} must hold one logit per head, ({heads},)"
            )
        arrays = arrays._replace(sinks=np.asarray(sinks, np.float32).reshape(kv_heads, group))
    if mask is None:
        return arrays
    if not isinstance(mask, np.ndarray) or mask.dtype.kind not in "bf":
        raise TypeError(
            "attn_mask must be a NumPy array, boolean (True = may be seen) or floating (added to "
            f"the logits), got {getattr(mask, 'dtype', type(mask).__name__)}"
        )
    try:
        whole = np.broadcast_to(mask, (*query.shape[:-1], keys)).reshape(*rows, keys)
    except ValueError:
        raise ValueError(
            f"attn_mask of shape {mask.shape} does not fit the logits, "
            f"{(*query.shape[:-1], keys)}: expected each axis equal or 1"
        ) from None
    if mask.dtype.kind == "b":
        return arrays._replace(mask=whole)
    lowest = _array.hiding_bias(float(np.finfo(mask.dtype).min))
    return arrays._replace(bias=whole.astype(np.float32, copy=False), lowest=lowest)


def _count_heads(query: Any, key: Any, value: Any, enable_gqa: bool) -> tuple[int, int]:
    """Check that types and sizes agree; return the numbers of query heads and of key heads."""
    named = {"query": query, "key": key, "value": value}
    named = {name: array for name, array in named.items() if array is not None}
    for name, array in named.items():
        if not isinstance(array, np.ndarray) or _array.dtype_name(array) not in DTYPES:
            kind = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"{name} must be a NumPy array of float32 or float16, got {kind}")
    shapes = ", ".join(f"{name} {array.shape}" for name, array in named.items())
    if query.ndim < 2 or any(array.ndim != query.ndim for array in named.values()):
        raise ValueError(f"{shapes}: expected the same axes, [..., heads, length, dim]")
    if query.shape[-1] != key.shape[-1] or any(
        array.shape[:-3] != query.shape[:-3] or array.shape[-2] != key.shape[-2]
        for name, array in named.items()
        if name != "query"
    ):
        raise ValueError(
            f"{shapes}: batch axes, the sizes of query and key, and the numbers of keys and values "
            "must be equal"
        )
    if query.ndim == 2:
        return 1, 1
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if value is not None and value.shape[-3] != kv_heads:
        raise ValueError(f"{shapes}: keys and values must have the same number of heads, axis -3")
    if heads != kv_heads and not (enable_gqa and kv_heads and heads % kv_heads == 0):
        raise ValueError(
            f"{shapes}: {heads} query heads and {kv_heads} key heads; with enable_gqa=True query "
            "heads share key heads, of which they must be a multiple"
        )
    return heads, kv_heads


def _count_threads(threads: int | None) -> int:
    return _array.optional_count("threads", threads) or usable_cores()
