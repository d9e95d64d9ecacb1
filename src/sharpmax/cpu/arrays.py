"""What users of NumPy call: shapes and arguments as `sharpmax.torch` has them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sharpmax import _array
from sharpmax.cpu import rows
from sharpmax.policies import PAPER, Policy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Mask = (
        Bool[np.ndarray, "*batch|1 heads|1 query|1 key|1"]
        | Float[np.ndarray, "*batch|1 heads|1 query|1 key|1"]
    )

TYPES = (np.dtype(np.float32), np.dtype(np.float16))


@dataclass(frozen=True)
class Stats:
    """Of each row of logits before it is sharpened, [*batch, heads, query], in float32."""

    entropy: Float[np.ndarray, "*batch heads query"]
    """In nats; 0 without keys."""
    log_sum_exp: Float[np.ndarray, "*batch heads query"]
    count: Int[np.ndarray, "*batch heads query"]
    """How many keys the query can see."""
    inverse_temperature: Float[np.ndarray, "*batch heads query"]
    """What the policy answered."""
    max_logit: Float[np.ndarray, "*batch heads query"]
    min_logit: Float[np.ndarray, "*batch heads query"]


class Attended(NamedTuple):
    """What `attention` returns."""

    output: Float[np.ndarray, "*batch heads query value_dim"]
    stats: Stats


def attention(
    query: Float[np.ndarray, "*batch heads query dim"],
    key: Float[np.ndarray, "*batch kv_heads key dim"],
    value: Float[np.ndarray, "*batch kv_heads key value_dim"],
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
    """Attention whose rows are sharpened by as much as their entropy asks for, and the statistics
    of each row; `sharpmax.torch.scaled_dot_product_attention` says what each argument means.

    `threads` is how many to use, by default one for each core that this process may use.
    """
    work = _work(query, key, value, attn_mask, enable_gqa, sinks)._replace(
        causal=bool(is_causal),
        scale=_array.logit_scale(scale, query.shape[-1]),
        softcap=None if softcap is None else _array.positive_number("softcap", softcap),
        window=_array.optional_count("window", window),
    )
    found = rows.run(work, policy, _threads(threads), stats=True)
    assert found.output is not None
    shape = query.shape[:-1]
    output = found.output.reshape(*shape, -1).astype(query.dtype, copy=False)
    return Attended(output, Stats(*(one.reshape(shape) for one in found.stats)))


def attention_stats(
    query: Float[np.ndarray, "*batch heads query dim"],
    key: Float[np.ndarray, "*batch kv_heads key dim"],
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
    """How spread out each row of attention is, for less than the price of its output."""
    work = _work(query, key, None, attn_mask, enable_gqa, None)._replace(
        causal=bool(is_causal),
        scale=_array.logit_scale(scale, query.shape[-1]),
        softcap=None if softcap is None else _array.positive_number("softcap", softcap),
        window=_array.optional_count("window", window),
    )
    found = rows.run(work, policy, _threads(threads), stats=True)
    return Stats(*(one.reshape(query.shape[:-1]) for one in found.stats))


def _work(query: Any, key: Any, value: Any, mask: Any, enable_gqa: bool, sinks: Any) -> rows.Work:
    heads, kv_heads = _heads(query, key, value, enable_gqa)
    queries, keys = query.shape[-2], key.shape[-2]
    group = heads // kv_heads if kv_heads else 1
    five = (math.prod(query.shape[:-3]), kv_heads, group, queries)

    def flat(array: Any) -> Any:
        shape = (five[0], kv_heads, *array.shape[-2:])
        return np.ascontiguousarray(array, np.float32).reshape(shape)

    work = rows.Work(
        query.astype(np.float32, copy=False).reshape(*five, query.shape[-1]),
        flat(key),
        None if value is None else flat(value),
    )
    if sinks is not None:
        if np.shape(sinks) != (heads,):
            raise ValueError(f"sinks of shape {np.shape(sinks)} must be one a head, ({heads},)")
        work = work._replace(sinks=np.asarray(sinks, np.float32).reshape(kv_heads, group))
    if mask is None:
        return work
    if not isinstance(mask, np.ndarray) or mask.dtype.kind not in "bf":
        raise TypeError(
            "attn_mask must be a NumPy array, boolean (True = may be seen) or floating (added to "
            f"the logits), got {getattr(mask, 'dtype', type(mask).__name__)}"
        )
    try:
        whole = np.broadcast_to(mask, (*query.shape[:-1], keys)).reshape(*five, keys)
    except ValueError:
        raise ValueError(
            f"attn_mask of shape {mask.shape} does not fit the logits, "
            f"{(*query.shape[:-1], keys)}: expected each axis equal or 1"
        ) from None
    if mask.dtype.kind == "b":
        return work._replace(mask=whole)
    lowest = float(np.finfo(mask.dtype).min)
    return work._replace(bias=whole.astype(np.float32, copy=False), lowest=lowest)


def _heads(query: Any, key: Any, value: Any, enable_gqa: bool) -> tuple[int, int]:
    """How many query heads and key heads there are, once types and sizes agree."""
    given = {"query": query, "key": key, "value": value}
    given = {name: array for name, array in given.items() if array is not None}
    for name, array in given.items():
        if not isinstance(array, np.ndarray) or array.dtype not in TYPES:
            found = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"{name} must be a NumPy array of float32 or float16, got {found}")
    shapes = ", ".join(f"{name} {array.shape}" for name, array in given.items())
    if query.ndim < 2 or any(array.ndim != query.ndim for array in given.values()):
        raise ValueError(f"{shapes}: expected the same axes, [..., heads, length, dim]")
    if query.shape[-1] != key.shape[-1] or any(
        array.shape[:-3] != query.shape[:-3] or array.shape[-2] != key.shape[-2]
        for name, array in given.items()
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


def _threads(threads: int | None) -> int:
    return _array.optional_count("threads", threads) or len(os.sched_getaffinity(0))
