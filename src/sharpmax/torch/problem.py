"""One attention call, checked and brought to one shape that every implementation reads."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sharpmax import _array

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

STATISTICS_DTYPE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


@dataclass(frozen=True)
class Problem:
    """What a query may look at, and by which logits:

        logit = softcap * tanh(scale * <q, k> / softcap) + bias

    where the mask allows it; without a softcap, scale * <q, k> + bias. Query heads that share a key
    head lie together in `group`, so that keys are never repeated in memory.
    """

    query: Float[Tensor, "batch kv_heads group query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    value: Float[Tensor, "batch kv_heads key value_dim"] | None
    mask: Bool[Tensor, "batch|1 kv_heads|1 group|1 query|1 key|1"] | None
    """True = the query may see the key."""
    bias: Float[Tensor, "batch|1 kv_heads|1 group|1 query|1 key|1"] | None
    causal: bool
    """Query i sees keys up to position i, the first key being at `first_key`."""
    window: int | None
    """Query i sees only keys less than this far from position i."""
    scale: float
    softcap: float | None
    sinks: Float[Tensor, "kv_heads group"] | None
    dropout: float
    first_key: int
    """0, as torch aligns queries and keys, but for a part of the keys of a longer sequence."""
    rows: tuple[int, ...]
    """The caller's shape of the queries without their last axis: [*batch, heads, query]."""
    learned_policy: bool = False
    """Whether autograd is recording something inside the policy."""

    @property
    def wide(self) -> torch.dtype:
        """The type of logits and statistics: float32, or float64 for float64."""
        return STATISTICS_DTYPE[self.query.dtype]

    @property
    def differentiates(self) -> bool:
        """Whether autograd is recording."""
        given = (self.query, self.key, self.value, self.bias, self.sinks)
        return torch.is_grad_enabled() and (
            self.learned_policy
            or any(tensor is not None and tensor.requires_grad for tensor in given)
        )

    def full_precision(self) -> AbstractContextManager[Any]:
        """Autocast would round the logits to half precision, and the statistics with them."""
        device = self.query.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            return torch.autocast(device, enabled=False)
        return nullcontext()

    def restore(self, answer: Float[Tensor, "batch kv_heads group query *rest"]) -> Tensor:
        """An answer in the caller's shape, [*batch, heads, query, *rest]."""
        return answer.reshape(*self.rows, *answer.shape[4:])


def pose(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: int | None = None,
) -> Problem:
    """Check the arguments of an attention call and bring them to one shape."""
    _check_tensors(query=query, key=key, value=value)
    heads, kv_heads = _heads(query, key, value, enable_gqa)
    group = heads // kv_heads if kv_heads else 1
    lead = _lead(query, key, value)
    batch = math.prod(lead)
    queries, keys = query.shape[-2], key.shape[-2]

    def spread(tensor: Tensor, its_heads: int) -> Tensor:
        if tensor.ndim == 4 and tensor.shape[0] == batch:
            return tensor
        return tensor.expand(*lead, its_heads, *tensor.shape[-2:]).reshape(
            batch, its_heads, *tensor.shape[-2:]
        )

    mask = _mask(attn_mask, lead, (kv_heads, group), (queries, keys), query)
    return Problem(
        query=spread(query, heads).unflatten(1, (kv_heads, group)),
        key=spread(key, kv_heads),
        value=None if value is None else spread(value, kv_heads),
        mask=mask if mask is not None and mask.dtype == torch.bool else None,
        bias=mask if mask is not None and mask.dtype != torch.bool else None,
        causal=bool(is_causal),
        window=_array.optional_count("window", window),
        scale=_array.logit_scale(scale, query.shape[-1]),
        softcap=None if softcap is None else _array.positive_number("softcap", softcap),
        sinks=None if sinks is None else _sinks(sinks, query, (kv_heads, group)),
        dropout=_probability(dropout_p),
        first_key=0,
        rows=(*lead, *([heads] if query.ndim > 2 else []), queries),
    )


def _check_tensors(**tensors: Tensor | None) -> None:
    query = tensors["query"]
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout != torch.strided:
            raise TypeError(f"{name} must be a dense tensor: nested and sparse ones are not served")
        if tensor.dtype not in STATISTICS_DTYPE:
            raise TypeError(
                f"{name} must have a floating type (float16, bfloat16, float32, float64), "
                f"got {tensor.dtype}"
            )
        if query is not None and tensor.dtype != query.dtype:
            raise TypeError(
                f"{name} is {tensor.dtype} and query is {query.dtype}: give them one type"
            )
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)} must have at least 2 axes: "
                "[..., heads, length, dim]"
            )


def _heads(query: Tensor, key: Tensor, value: Tensor | None, enable_gqa: bool) -> tuple[int, int]:
    """How many query heads and key heads there are, once all the sizes agree."""

    def wrong(what: str) -> ValueError:
        # In words only here: they take as long as all the checks.
        given = {"query": query, "key": key, "value": value}
        shapes = [f"{name} {tuple(x.shape)}" for name, x in given.items() if x is not None]
        return ValueError(f"{', '.join(shapes)}: {what}")

    if query.shape[-1] != key.shape[-1]:
        raise wrong("the last axes of query and key must be equal")
    if value is not None and value.shape[-2] != key.shape[-2]:
        raise wrong("there must be as many values as keys, on axis -2")
    if any(tensor.ndim != query.ndim for tensor in (key, value) if tensor is not None):
        raise wrong("they must have the same number of axes")
    if query.ndim == 2:
        return 1, 1
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if value is not None and value.shape[-3] != kv_heads:
        raise wrong("keys and values must have the same number of heads, axis -3")
    if heads != kv_heads and not enable_gqa:
        raise wrong(
            f"{heads} query heads and {kv_heads} key heads; to let query heads share a key head "
            "pass enable_gqa=True"
        )
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise wrong(
            f"{heads} query heads cannot share {kv_heads} key heads evenly; the number of query "
            "heads must be a multiple"
        )
    return heads, kv_heads


def _lead(query: Tensor, key: Tensor, value: Tensor | None) -> tuple[int, ...]:
    """The batch axes before the heads, broadcast."""
    leads = [tensor.shape[:-3] for tensor in (query, key, value) if tensor is not None]
    if all(lead == leads[0] for lead in leads):
        return tuple(leads[0])
    try:
        return tuple(torch.broadcast_shapes(*leads))
    except RuntimeError:
        shapes = " and ".join(str(tuple(lead)) for lead in leads)
        raise ValueError(f"the batch axes {shapes} of query, key and value do not fit") from None


def _mask(
    mask: Tensor | None,
    lead: tuple[int, ...],
    heads: tuple[int, int],
    lengths: tuple[int, int],
    query: Tensor,
) -> Tensor | None:
    """A mask of any broadcastable shape as [batch|1, kv_heads|1, group|1, query|1, key|1]."""
    if mask is None:
        return None
    if mask.dtype != torch.bool and mask.dtype not in STATISTICS_DTYPE:
        raise TypeError(
            f"attn_mask must be boolean (True = may be seen) or floating (added to the logits), "
            f"got {mask.dtype}"
        )
    full = (*lead, *([math.prod(heads)] if query.ndim > 2 else []), *lengths)
    sizes = zip(reversed(full), reversed(mask.shape), strict=False)
    if mask.ndim > len(full) or not all(its in (1, size) for size, its in sizes):
        raise ValueError(
            f"attn_mask of shape {tuple(mask.shape)} does not fit the logits, {full}: "
            "expected each axis equal or 1"
        )
    while mask.ndim < 4:
        mask = mask.unsqueeze(0)
    if mask.ndim > 4:  # several batch axes: one of them broadcast means copying the mask
        mask = mask.expand(*lead, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
    return mask.unflatten(1, heads if mask.shape[1] > 1 else (1, 1))


def _sinks(sinks: Tensor, query: Tensor, heads: tuple[int, int]) -> Tensor:
    if tuple(sinks.shape) != (math.prod(heads),) or query.ndim < 3:
        raise ValueError(
            f"sinks of shape {tuple(sinks.shape)} must be one logit a query head, "
            f"({math.prod(heads)},), with query of shape [..., heads, length, dim]"
        )
    return sinks.unflatten(0, heads)


def _probability(dropout: float) -> float:
    if not _array.is_number(dropout) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout_p must be a probability, 0 to 1, got {dropout!r}")
    return float(dropout)
