"""Attention in plain torch, one block of query rows at a time, with bounded memory.

A block has whole rows: all keys that its rows can see by their position, so that queries and keys
are multiplied once. `map_blocks` cuts a call into blocks; the other functions compute logits,
statistics and weighted values of one block. `streaming` and `sharded_attention` are built from
them; `fused` and `triton` use `compute_details`.

Under autograd a block is computed again in the backward pass instead of being kept. Otherwise each
step overwrites the last one, in memory that the next block uses again. `out=` is None in the first
case, so that one text serves both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sharpmax.ops._rows import NOTHING, VANISHES
from sharpmax.torch import products
from sharpmax.torch.interface import Inputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped

MAX_LOGITS = 1 << 21
"""Logits of a block, 8 MB of float32. The memory in use is two such blocks."""

MAX_ROWS = 128
"""Query rows per head in a block; it takes more heads rather than more rows. Measured on two cores
with 8 heads of 512 to 8,192 tokens: 64 or 256 rows, or half of MAX_LOGITS, took 1.0 to 1.5 times as
long; more rows also waste work beyond the causal edge."""

MIN_WORKSPACE = 1 << 14
"""Smaller arrays come from the heap. Larger ones are mapped and cleared page by page each time, so
that keeping them is faster."""

MIN_FOLDED_ROWS = 8
"""From this many query rows on, batch and heads become one axis even if that copies the keys:
reading the keys is then a small part of the work, and a block per batch entry would cost more."""

FLOOR = -1e4
"""The exponential of an offset of so many bits is 0 in every type, and its square is finite."""

LOG_2 = math.log(2)
BITS = 1 / LOG_2
"""One nat in bits."""


class Block(NamedTuple):
    """Which part of the call a block is, and where it may write."""

    batch: slice
    heads: slice
    rows: slice
    keys: slice
    """Keys that any of the rows can see by their position."""
    in_place: bool
    """Whether a step may overwrite its input: not under autograd."""
    workspace: tuple[Tensor, Tensor] | None

    def take_rows(self, tensor: Tensor) -> Tensor:
        """Return this block of a tensor [batch kv_heads group query ...]."""
        return self._narrow(tensor, 3, self.rows)

    def take_keys(self, tensor: Tensor) -> Tensor:
        """Return this block of a tensor [batch kv_heads key ...]."""
        return self._narrow(tensor, 2, self.keys)

    def _narrow(self, tensor: Tensor, axis: int, cut: slice) -> Tensor:
        for where, part in ((0, self.batch), (1, self.heads), (axis, cut)):
            if part.stop - part.start < tensor.shape[where]:
                tensor = tensor.narrow(where, part.start, part.stop - part.start)
        return tensor

    def take_mask(self, mask: Shaped[Tensor, "#batch #kv_heads #group #query #key"]) -> Tensor:
        """Return this block of a mask whose axes may have length 1."""
        whole = slice(None)
        cuts = (self.batch, self.heads, whole, self.rows, self.keys)
        sizes = zip(cuts, mask.shape, strict=True)
        return mask[tuple(whole if size == 1 else cut for cut, size in sizes)]

    def overwrite(self, tensor: Tensor) -> Tensor | None:
        """Return the `out=` of the next step on this tensor: the tensor itself, or None."""
        return tensor if self.in_place else None

    def scratch(self, which: int, shape: tuple[int, ...]) -> Tensor | None:
        """Return part of a workspace as `out=`, or None where there is no workspace."""
        if self.workspace is None:
            return None
        return self.workspace[which][: math.prod(shape)].view(shape)


def map_blocks(
    inputs: Inputs, compute: Callable[[Block], tuple[Tensor, ...]], *, all_heads: bool = False
) -> tuple[Tensor, ...]:
    """Run `compute` on each block and join its answers, all [batch kv_heads group query ...].

    With `all_heads` every block has all heads, and fewer rows.
    """
    recorded = inputs.needs_gradient
    if recorded:
        compute = functools.partial(
            checkpoint, compute, use_reentrant=False, preserve_rng_state=inputs.dropout > 0
        )
    batch, heads, _, queries, _ = inputs.query.shape
    batch_step, head_step, row_step, size = _block_shape(inputs, all_heads)
    workspace = _workspace(inputs, size) if size >= MIN_WORKSPACE and not recorded else None
    by_batch = []
    for batch_part in _slices(batch, batch_step):
        by_head = []
        for head_part in _slices(heads, head_step):
            by_rows = []
            for rows in _slices(queries, row_step):
                keys = _keys_in_reach(inputs, rows)
                block = Block(batch_part, head_part, rows, keys, not recorded, workspace)
                by_rows.append(compute(block))
            by_head.append(_join(by_rows, 3))
        by_batch.append(_join(by_head, 1))
    return _join(by_batch, 0)


def _block_shape(inputs: Inputs, all_heads: bool) -> tuple[int, int, int, int]:
    """Return how many batch entries, key heads and query rows a block has, and its logits."""
    batch, heads, group, queries, _ = inputs.query.shape
    keys = inputs.key.shape[2]
    # A window limits the keys of a block.
    reach = keys if inputs.window is None else min(keys, 2 * inputs.window + MAX_ROWS)
    row = max(1, group * reach * (heads if all_heads else 1))
    rows = min(max(1, MAX_LOGITS // row), max(1, queries), MAX_ROWS)
    if all_heads:
        row, head_step = row // max(1, heads), max(1, heads)
    else:
        head_step = min(max(1, MAX_LOGITS // (row * rows)), max(1, heads))
    batch_step = min(max(1, MAX_LOGITS // (row * rows * max(1, heads))), max(1, batch))
    tensors = (inputs.key, inputs.value)
    if rows * group < MIN_FOLDED_ROWS and not all(map(_folds_without_copy, tensors)):
        batch_step = 1
    return batch_step, head_step, rows, batch_step * head_step * rows * row


def _folds_without_copy(tensor: Tensor | None) -> bool:
    """Tell whether batch and heads are one axis in memory."""
    if tensor is None or tensor.shape[0] == 1:
        return True
    return tensor.stride(0) == tensor.stride(1) * tensor.shape[1]


def _workspace(inputs: Inputs, size: int) -> tuple[Tensor, Tensor]:
    device = inputs.query.device
    return (
        torch.empty(size, dtype=inputs.stats_dtype, device=device),
        torch.empty(size, dtype=inputs.stats_dtype, device=device),
    )


def _slices(length: int, step: int) -> Iterator[slice]:
    """Yield 0 to length in steps; one empty slice for length 0, so that shapes survive."""
    for start in range(0, max(1, length), step):
        yield slice(start, min(start + step, length))


def _join(answers: list[tuple[Tensor, ...]], axis: int) -> tuple[Tensor, ...]:
    if len(answers) == 1:
        return answers[0]
    return tuple(torch.cat(parts, axis) for parts in zip(*answers, strict=True))


def _keys_in_reach(inputs: Inputs, rows: slice) -> slice:
    """Return the keys that any of these rows can see: up to the last row's causal edge or window,
    from the start of the first row's window.
    """
    start, stop = 0, inputs.key.shape[2]
    if inputs.causal:
        stop = min(max(0, rows.stop - inputs.first_key), stop)
    if inputs.window is not None:
        stop = min(max(0, rows.stop - 1 + inputs.window - inputs.first_key), stop)
        start = min(max(0, rows.start - inputs.window + 1 - inputs.first_key), stop)
    return slice(start, stop)


def visible_by_position(inputs: Inputs, block: Block) -> Bool[Tensor, "query key"]:
    """Return which keys of a causal or windowed block each row can see by its position."""
    device = inputs.query.device
    query = torch.arange(block.rows.start, block.rows.stop, device=device)[:, None]
    key = torch.arange(block.keys.start, block.keys.stop, device=device) + inputs.first_key
    if inputs.window is None:
        return key <= query
    visible = key > query - inputs.window
    return visible & (key <= query if inputs.causal else key < query + inputs.window)


def count_by_position(inputs: Inputs, rows: slice) -> Int[Tensor, " query"]:
    """Return how many keys each of these rows can see by its position."""
    keys, device = inputs.key.shape[2], inputs.query.device
    position = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=device)
    position = position - inputs.first_key
    if inputs.causal:
        stop = position + 1
    elif inputs.window is not None:
        stop = position + inputs.window
    else:
        stop = torch.full_like(position, keys)
    stop = stop.clamp(0, keys)
    if inputs.window is None:
        return stop
    return stop - torch.minimum((position - inputs.window + 1).clamp(min=0), stop)


def count_visible(
    inputs: Inputs, block: Block, where: Tensor | None, shape: torch.Size
) -> Int[Tensor, "batch kv_heads group query"]:
    """Return how many keys each row can see, given what the masks allow and the logits' shape."""
    if where is None:
        return count_by_position(inputs, block.rows).expand(shape[:4])
    if inputs.causal or inputs.window is not None:
        where = where & visible_by_position(inputs, block)
    visible = where.expand(*where.shape[:4], shape[4])
    return visible.sum(-1, dtype=torch.int32).expand(shape[:4])


def compute_logits(
    inputs: Inputs, block: Block
) -> tuple[
    Float[Tensor, "batch kv_heads group query key"],
    Bool[Tensor, "#batch #kv_heads #group #query #key"] | None,
]:
    """Return a block's logits in bits, -inf where a key is hidden, and what the masks allow.

    In base 2 because torch's exp is slow where it underflows, see `sharpmax._array.exp`.
    """
    query = block.take_rows(inputs.query).to(inputs.stats_dtype)
    key = block.take_keys(inputs.key).to(inputs.stats_dtype)
    scale = inputs.scale * BITS if inputs.softcap is None else inputs.scale / inputs.softcap
    shape = (*query.shape[:4], key.shape[2])
    # Query heads that share keys are stacked as rows of one product.
    left = (query * scale).reshape(shape[0] * shape[1], shape[2] * shape[3], query.shape[4])
    right = key.flatten(0, 1)
    if left.shape[1] == 1:  # one query: the same numbers, a fifth faster this way round
        out = block.scratch(0, (left.shape[0], shape[4], 1))
        logits = products.multiply(right, left, out).view(shape)
    else:
        out = block.scratch(0, (left.shape[0], left.shape[1], shape[4]))
        logits = products.multiply(left, right, out).view(shape)
    out = block.overwrite(logits)
    if inputs.softcap is not None:
        logits = torch.mul(torch.tanh(logits, out=out), inputs.softcap * BITS, out=out)
    where = None
    if inputs.bias is not None:
        bias = block.take_mask(inputs.bias)
        logits = torch.add(logits, bias.to(inputs.stats_dtype), alpha=BITS, out=out)
        where = ~(bias <= inputs.hiding_bias)  # not `>`, which would hide a NaN
    if inputs.mask is not None:
        mask = block.take_mask(inputs.mask)
        where = mask if where is None else where & mask
    # In place, even under autograd: nothing else holds the logits yet.
    if where is not None:
        logits = logits.masked_fill_(~where, -torch.inf)
    if inputs.window is not None:
        logits = logits.masked_fill_(~visible_by_position(inputs, block), -torch.inf)
    elif inputs.causal:
        # Only the last columns are beyond the edge of any row.
        edge = slice(max(0, block.rows.start - inputs.first_key), block.keys.stop)
        hidden = ~visible_by_position(inputs, block)[:, edge]
        logits[..., edge].masked_fill_(hidden, -torch.inf)
    return logits, where


class Offsets(NamedTuple):
    """A block's logits as distances below their row's maximum, in bits: b stands for 2**b."""

    bits: Float[Tensor, "batch kv_heads group query key"]
    """(logit - maximum) / log 2, from NOTHING (hidden) to 0."""
    top: Float[Tensor, "batch kv_heads group query 1"]
    """The largest logit, in bits and off the graph; -inf for a row without keys."""

    @property
    def maximum(self) -> Float[Tensor, "batch kv_heads group query"]:
        """The largest logit, in nats."""
        return self.top[..., 0] * LOG_2

    def sums(self, block: Block, *, squares: bool) -> tuple[Tensor, ...]:
        """Return the sums of exp(o), of o * exp(o) and, if asked, of o**2 * exp(o), with
        o = logit - maximum in nats.
        """
        exponentials = torch.exp2(self.bits, out=block.scratch(1, self.bits.shape))
        total = exponentials.sum(-1)
        # In a gradient the square of a hidden key's offset would overflow.
        near = self.bits.clamp(min=FLOOR) if squares and not block.in_place else self.bits
        moments = torch.mul(near, exponentials, out=block.overwrite(exponentials))
        moment = moments.sum(-1) * LOG_2
        if not squares:
            return total, moment
        squared = torch.mul(near, moments, out=block.overwrite(moments)).sum(-1)
        return total, moment, squared * LOG_2**2


def subtract_maximum(
    bits: Float[Tensor, "batch kv_heads group query key"], block: Block
) -> Offsets:
    """Turn logits in bits into offsets below their row's maximum."""
    if bits.shape[-1] == 0:
        return Offsets(bits, bits.sum(-1, keepdim=True) - torch.inf)
    maximum = bits.detach().amax(-1, keepdim=True)
    # Made finite: every finite logit is then far below an infinite maximum, and a row without keys
    # has no infinities to subtract.
    limits = torch.finfo(bits.dtype)
    top = maximum.clamp(limits.min, limits.max / 2)
    below = torch.sub(bits, top, out=block.overwrite(bits))
    # The same as `sharpmax._array.bounded_offset`.
    offsets = torch.nan_to_num(
        below, nan=torch.nan, posinf=0.0, neginf=NOTHING, out=block.overwrite(below)
    )
    return Offsets(offsets, maximum)


def find_varentropy(total: Tensor, moment: Tensor, squared: Tensor) -> Tensor:
    """Return the variance of the offsets from the sums of `Offsets.sums`."""
    total = total.clamp(min=1)  # at least 1, except for the 0 of a row without keys
    # Rounding may leave it just below 0.
    return (squared / total - (moment / total) ** 2).clamp(min=0)


def sum_values(
    inputs: Inputs,
    block: Block,
    offsets: Offsets,
    factor: Float[Tensor, "batch kv_heads group query"],
) -> tuple[
    Float[Tensor, "batch kv_heads group query value_dim"],
    Float[Tensor, "batch kv_heads group query"],
]:
    """Return sum_j exp(factor * offset_j) * value_j and sum_j exp(factor * offset_j)."""
    assert inputs.value is not None
    # From this factor on, the exponential of a hidden key is 0 in every type.
    factors = factor[..., None].clamp(min=VANISHES)
    scaled = torch.mul(offsets.bits, factors, out=block.overwrite(offsets.bits))
    exponentials = torch.exp2(scaled, out=block.overwrite(scaled))
    mass = exponentials.sum(-1)
    if inputs.dropout:
        exponentials = torch.dropout(exponentials, inputs.dropout, True)
    value = block.take_keys(inputs.value).to(inputs.stats_dtype)
    pairs, stacked = value.shape[0] * value.shape[1], factor.shape[2] * factor.shape[3]
    weights = exponentials.view(pairs, stacked, value.shape[2])
    product = products.weigh if inputs.hides_keys else torch.bmm
    total = product(weights, value.flatten(0, 1))
    return total.view(*factor.shape, value.shape[3]), mass


def find_extremes(
    bits: Float[Tensor, "batch kv_heads group query key"], block: Block
) -> tuple[
    Float[Tensor, "batch kv_heads group query"], Float[Tensor, "batch kv_heads group query"]
]:
    """Return the largest and the smallest visible logit of each row in nats, from bits."""
    if bits.shape[-1] == 0:
        nothing = bits.sum(-1)
        return nothing - torch.inf, nothing + torch.inf
    # A hidden key is -inf; as +inf it is never the smallest.
    raised = torch.nan_to_num(
        bits,
        nan=torch.nan,
        posinf=torch.inf,
        neginf=torch.inf,
        out=block.scratch(1, bits.shape),
    )
    return bits.amax(-1) * LOG_2, raised.amin(-1) * LOG_2


def compute_details(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return varentropy, largest and smallest visible logit of every row, in the caller's shape."""

    def compute(block: Block) -> tuple[Tensor, Tensor, Tensor]:
        bits, _ = compute_logits(inputs, block)
        extremes = find_extremes(bits, block)
        return find_varentropy(*subtract_maximum(bits, block).sums(block, squares=True)), *extremes

    with inputs.full_precision():  # the caller may read them later, under another autocast
        varentropy, maximum, minimum = map(inputs.restore_shape, map_blocks(inputs, compute))
    return varentropy, maximum, minimum
