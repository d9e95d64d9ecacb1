"""What goes into an attention call and what comes out, for every implementation.

`prepare_inputs` is the only place that checks arguments. It returns `Inputs`, in one layout that
all implementations read. They return the output in the caller's shape and `AttentionStats`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sharpmax import _array
from sharpmax.ops import SoftmaxState

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped

STATS_DTYPE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


class Inputs(NamedTuple):
    """Validated arguments of one attention call.

        logit = softcap * tanh(scale * <q, k> / softcap) + bias

    Without a softcap, logit = scale * <q, k> + bias. Query heads that share a key head are stacked
    in `group`, so that keys are never repeated in memory.
    """

    query: Float[Tensor, "batch kv_heads group query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    value: Float[Tensor, "batch kv_heads key value_dim"] | None
    mask: Bool[Tensor, "#batch #kv_heads #group #query #key"] | None
    """True where a query may see a key."""
    bias: Float[Tensor, "#batch #kv_heads #group #query #key"] | None
    """`hiding_bias` and less hides a key."""
    causal: bool
    """Query i sees keys up to position i; the first key has position `first_key`."""
    window: int | None
    """Query i sees only keys less than this far from position i."""
    scale: float
    softcap: float | None
    sinks: Float[Tensor, "kv_heads group"] | None
    dropout: float
    first_key: int
    """0, except when the keys are one shard of a longer sequence."""
    rows: tuple[int, ...]
    """The caller's shape of the queries without the last axis: [*batch, heads, query]."""
    learned_policy: bool = False
    """Whether the policy has a parameter that needs a gradient."""

    @property
    def stats_dtype(self) -> torch.dtype:
        """The type of logits and statistics: float64 for float64, otherwise float32."""
        return STATS_DTYPE[self.query.dtype]

    @property
    def needs_gradient(self) -> bool:
        """Whether autograd records this call."""
        tensors = (self.query, self.key, self.value, self.bias, self.sinks)
        return torch.is_grad_enabled() and (
            self.learned_policy
            or any(tensor is not None and tensor.requires_grad for tensor in tensors)
        )

    @property
    def hiding_bias(self) -> float:
        """A bias of this or less hides a key: -1e38, or the lowest number of its type."""
        if self.bias is None:
            return -math.inf
        return _array.hiding_bias(torch.finfo(self.bias.dtype).min)

    @property
    def hides_keys(self) -> bool:
        """Whether any query may not see some key."""
        masked = self.mask is not None or self.bias is not None
        return self.causal or masked or self.window is not None

    def full_precision(self) -> AbstractContextManager[Any]:
        """Turn autocast off: it would round the logits, and with them the statistics."""
        device = self.query.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            return torch.autocast(device, enabled=False)
        return nullcontext()

    def restore_shape(self, answer: Shaped[Tensor, "batch kv_heads group query ..."]) -> Tensor:
        """Reshape an answer to the caller's [*batch, heads, query, ...]."""
        return answer.reshape(*self.rows, *answer.shape[4:])


class AttentionStats:
    """Statistics of each row of logits, before sharpening.

    They answer how dispersed attention is without the matrix of weights. All have the shape
    [*batch, heads, query] and are differentiable; the type is float64 for float64 inputs, otherwise
    float32. Sinks are not counted: a sink of logit z takes 1 / (1 + exp(log_sum_exp - z)) of an
    unsharpened row.
    """

    entropy: Float[Tensor, "*batch_heads query"]
    """Entropy of the softmax over the visible keys, in nats; 0 without visible keys."""
    log_sum_exp: Float[Tensor, "*batch_heads query"]
    """log of the sum of exp(logit) over the visible keys; -inf without any."""
    count: Int[Tensor, "*batch_heads query"]
    """Number of keys that the query can see."""
    inverse_temperature: Float[Tensor, "*batch_heads query"]
    """The factor on the row's logits that the policy returned."""

    def __init__(
        self,
        entropy: Float[Tensor, "*batch_heads query"],
        log_sum_exp: Float[Tensor, "*batch_heads query"],
        count: Int[Tensor, "*batch_heads query"],
        inverse_temperature: Float[Tensor, "*batch_heads query"],
        details: Callable[[], tuple[Tensor, ...]],
    ) -> None:
        """Store statistics in the caller's shape.

        Args:
            entropy: Entropy of each row, in nats.
            log_sum_exp: log of the sum of exp(logit).
            count: Number of visible keys.
            inverse_temperature: What the policy returned.
            details: Computes varentropy, largest and smallest logit at the first read of any.
        """
        self.entropy = entropy
        self.log_sum_exp = log_sum_exp
        self.count = count
        self.inverse_temperature = inverse_temperature
        self._find_details = details

    @classmethod
    def from_state(
        cls, inputs: Inputs, state: SoftmaxState, inverse_temperature: Tensor
    ) -> AttentionStats:
        """Return the statistics of rows of which everything is known.

        Args:
            inputs: The call, whose shape the statistics take.
            state: The state of each row, [batch kv_heads group query].
            inverse_temperature: What the policy returned, in the same shape.

        Returns:
            Statistics in the caller's shape.
        """
        return cls(
            entropy=inputs.restore_shape(state.entropy),
            log_sum_exp=inputs.restore_shape(state.log_sum_exp),
            count=inputs.restore_shape(state.count),
            inverse_temperature=inputs.restore_shape(inverse_temperature),
            details=lambda: tuple(
                map(inputs.restore_shape, (state.varentropy, state.max, state.min))
            ),
        )

    @cached_property
    def _details(self) -> tuple[Tensor, ...]:
        # Fused kernels do not return them, and computing them needs another product of queries and
        # keys. Only callers who read them pay for it.
        details = self._find_details()
        del self._find_details  # it holds queries and keys
        return details

    @property
    def varentropy(self) -> Float[Tensor, "*batch_heads query"]:
        """Variance of log p under the softmax p, in square nats; 0 without visible keys.

        The entropy falls by this much per unit of log(inverse temperature). With `impl="fused"`,
        and with `impl="triton"` under autograd, the first read of this, `max_logit` or `min_logit`
        costs a pass over the keys.
        """
        return self._details[0]

    @property
    def max_logit(self) -> Float[Tensor, "*batch_heads query"]:
        """The largest visible logit; -inf without visible keys."""
        return self._details[1]

    @property
    def min_logit(self) -> Float[Tensor, "*batch_heads query"]:
        """The smallest visible logit; +inf without visible keys."""
        return self._details[2]

    @property
    def max_weight(self) -> Float[Tensor, "*batch_heads query"]:
        """The largest weight before sharpening; 0 without visible keys."""
        return torch.where(self.count > 0, (self.max_logit - self.log_sum_exp).exp(), 0.0)

    @property
    def spread(self) -> Float[Tensor, "*batch_heads query"]:
        """max_logit - min_logit, the delta of the paper's bounds; 0 without visible keys."""
        return torch.where(self.count > 0, self.max_logit - self.min_logit, 0.0)

    @property
    def effective_items(self) -> Float[Tensor, "*batch_heads query"]:
        """exp(entropy): the number of equally weighted keys that are as spread out; 0 without."""
        return torch.where(self.count > 0, self.entropy.exp(), 0.0)

    def __repr__(self) -> str:
        return f"AttentionStats(entropy={self.entropy!r}, count={self.count!r}, ...)"


class AttentionOutput(NamedTuple):
    """Output and statistics, as `attention` and `sharded_attention` return them.

    Attributes:
        output: The attention output, [*batch, heads, query, value_dim], in the input's type.
        stats: Statistics of each row.
    """

    output: Float[Tensor, "*batch_heads query value_dim"]
    stats: AttentionStats


def prepare_inputs(
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
) -> Inputs:
    """Check the arguments of an attention call and bring them to one layout."""
    _check_tensors(query, key, value)
    heads, kv_heads = _count_heads(query, key, value, enable_gqa)
    group = heads // kv_heads if kv_heads else 1
    batch_shape = _broadcast_batch(query, key, value)
    batch = math.prod(batch_shape)
    queries, keys = query.shape[-2], key.shape[-2]

    def to_four_axes(tensor: Tensor, tensor_heads: int) -> Tensor:
        if tensor.ndim == 4 and tensor.shape[0] == batch:
            return tensor
        shape = (tensor_heads, *tensor.shape[-2:])
        return tensor.expand(*batch_shape, *shape).reshape(batch, *shape)

    mask = _prepare_mask(attn_mask, batch_shape, (kv_heads, group), (queries, keys), query)
    return Inputs(
        query=to_four_axes(query, heads).unflatten(1, (kv_heads, group)),
        key=to_four_axes(key, kv_heads),
        value=None if value is None else to_four_axes(value, kv_heads),
        mask=mask if mask is not None and mask.dtype == torch.bool else None,
        bias=mask if mask is not None and mask.dtype != torch.bool else None,
        causal=bool(is_causal),
        window=_array.optional_count("window", window),
        scale=_array.logit_scale(scale, query.shape[-1]),
        softcap=None if softcap is None else _array.positive_number("softcap", softcap),
        sinks=None if sinks is None else _prepare_sinks(sinks, query, (kv_heads, group)),
        dropout=_check_probability(dropout_p),
        first_key=0,
        rows=(*batch_shape, *([heads] if query.ndim > 2 else []), queries),
    )


def _check_tensors(query: Tensor, key: Tensor, value: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout is not torch.strided:
            raise TypeError(
                f"{name} must be a dense tensor; nested and sparse tensors are not supported"
            )
        if tensor.dtype not in STATS_DTYPE:
            raise TypeError(
                f"{name} must have a floating type (float16, bfloat16, float32, float64), "
                f"got {tensor.dtype}"
            )
        if tensor.dtype is not query.dtype:
            raise TypeError(
                f"{name} is {tensor.dtype} and query is {query.dtype}: convert them to one type"
            )
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)} must have at least 2 axes: "
                "[..., heads, length, dim]"
            )


def _count_heads(
    query: Tensor, key: Tensor, value: Tensor | None, enable_gqa: bool
) -> tuple[int, int]:
    """Check that all sizes agree; return the numbers of query heads and of key heads."""

    def mismatch(expectation: str) -> ValueError:
        # Built only on failure: formatting the shapes takes as long as all the checks.
        tensors = {"query": query, "key": key, "value": value}
        shapes = [f"{name} {tuple(x.shape)}" for name, x in tensors.items() if x is not None]
        return ValueError(f"{', '.join(shapes)}: {expectation}")

    if query.shape[-1] != key.shape[-1]:
        raise mismatch("the last axes of query and key must be equal")
    if value is not None and value.shape[-2] != key.shape[-2]:
        raise mismatch("there must be as many values as keys, on axis -2")
    if any(tensor.ndim != query.ndim for tensor in (key, value) if tensor is not None):
        raise mismatch("they must have the same number of axes")
    if query.ndim == 2:
        return 1, 1
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if value is not None and value.shape[-3] != kv_heads:
        raise mismatch("keys and values must have the same number of heads, axis -3")
    if heads != kv_heads and not enable_gqa:
        raise mismatch(
            f"{heads} query heads and {kv_heads} key heads; to let query heads share a key head "
            "pass enable_gqa=True"
        )
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise mismatch(
            f"{heads} query heads cannot share {kv_heads} key heads evenly; the number of query "
            "heads must be a multiple"
        )
    return heads, kv_heads


def _broadcast_batch(query: Tensor, key: Tensor, value: Tensor | None) -> tuple[int, ...]:
    """Return the batch axes before the heads, broadcast."""
    shapes = [tensor.shape[:-3] for tensor in (query, key, value) if tensor is not None]
    if all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        listed = " and ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(
            f"the batch axes {listed} of query, key and value do not broadcast"
        ) from None


def _prepare_mask(
    mask: Tensor | None,
    batch_shape: tuple[int, ...],
    heads: tuple[int, int],
    lengths: tuple[int, int],
    query: Tensor,
) -> Tensor | None:
    """Bring a mask to [batch kv_heads group query key], where each axis may have length 1."""
    if mask is None:
        return None
    if mask.dtype != torch.bool and mask.dtype not in STATS_DTYPE:
        raise TypeError(
            f"attn_mask must be boolean (True = may be seen) or floating (added to the logits), "
            f"got {mask.dtype}"
        )
    full = (*batch_shape, *([math.prod(heads)] if query.ndim > 2 else []), *lengths)
    pairs = zip(reversed(full), reversed(mask.shape), strict=False)
    if mask.ndim > len(full) or not all(length in (1, size) for size, length in pairs):
        raise ValueError(
            f"attn_mask of shape {tuple(mask.shape)} does not fit the logits, {full}: "
            "expected each axis equal or 1"
        )
    while mask.ndim < 4:
        mask = mask.unsqueeze(0)
    if mask.ndim > 4:  # to merge several batch axes, broadcast ones are copied
        mask = mask.expand(*batch_shape, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
    return mask.unflatten(1, heads if mask.shape[1] > 1 else (1, 1))


def _prepare_sinks(sinks: Tensor, query: Tensor, heads: tuple[int, int]) -> Tensor:
    if tuple(sinks.shape) != (math.prod(heads),) or query.ndim < 3:
        raise ValueError(
            f"sinks of shape {tuple(sinks.shape)} must hold one logit per query head, "
            f"({math.prod(heads)},), with query of shape [..., heads, length, dim]"
        )
    return sinks.unflatten(0, heads)


def _check_probability(dropout: float) -> float:
    if not _array.is_number(dropout) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout_p must be a probability from 0 to 1, got {dropout!r}")
    return float(dropout)
