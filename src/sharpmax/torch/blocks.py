"""Attention by blocks of query rows: each block holds its logits over all keys, and then is gone.

    memory = two blocks of BLOCK numbers, whatever the number of queries

A whole row is at hand when its inverse temperature is needed, so queries and keys are multiplied
once. Under autograd a block is computed again on the way back instead of being kept. Otherwise each
step overwrites the last one, in memory that the next block uses again: `out=` is None in the first
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
from sharpmax.torch.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

BLOCK = 1 << 21
"""Logits a block, 8 MB of float32."""

BLOCK_ROWS = 128
"""Query rows of one head in a block; it takes more heads rather than more rows. Measured on two
cores with 8 heads of 512 to 8,192 tokens: 64 or 256 rows, or half of BLOCK, took 1.0 to 1.5 times
as long; more rows also waste work beyond the causal edge."""

LOG_2 = math.log(2)
BITS = 1 / LOG_2
"""One nat in bits."""

WORTH_KEEPING = 1 << 14
"""Smaller arrays come from the heap; larger ones are mapped and cleared page by page each time."""

WORTH_FOLDING = 8
"""Batch and heads are made one axis even if that copies the keys, for this many query rows: reading
the keys is then a small part of the work, and a block an entry would cost more."""


class Block(NamedTuple):
    """Which part of the problem a block is, and where it may put its numbers."""

    batch: slice
    heads: slice
    rows: slice
    keys: slice
    """Those that any of its rows can see by their position."""
    in_place: bool
    """Whether a step may overwrite the one before it: not under autograd."""
    workspace: tuple[Tensor, Tensor] | None

    def of(self, tensor: Tensor, axis: int) -> Tensor:
        """This block of queries (whose rows are axis 3) or of keys or values (axis 2)."""
        cuts = ((0, self.batch), (1, self.heads), (axis, self.rows if axis == 3 else self.keys))
        for where, cut in cuts:
            if cut.stop - cut.start < tensor.shape[where]:
                tensor = tensor.narrow(where, cut.start, cut.stop - cut.start)
        return tensor

    def over(self, tensor: Tensor) -> Tensor | None:
        """Where the next step on this tensor goes: over it, or somewhere new."""
        return tensor if self.in_place else None

    def space(self, which: int, shape: tuple[int, ...]) -> Tensor | None:
        if self.workspace is None:
            return None
        return self.workspace[which][: math.prod(shape)].view(shape)


class Rows(NamedTuple):
    """A block's logits as offsets below their row's maximum, in bits: an offset b is a weight 2**b.

    In base 2 because torch's exp is slow where it underflows, see `sharpmax._array.exp`.
    """

    offset: Float[Tensor, "batch kv_heads group query key"]
    """(logit - maximum) / log 2, from NOTHING (hidden) to 0."""
    top: Float[Tensor, "batch kv_heads group query 1"]
    """The largest logit, in bits and off the graph; -inf for a row without keys."""

    @property
    def maximum(self) -> Float[Tensor, "batch kv_heads group query"]:
        """The largest logit, in nats."""
        return self.top[..., 0] * LOG_2

    def sums(self, block: Block) -> tuple[Tensor, Tensor]:
        """l = sum exp(logit - maximum) and t = sum (logit - maximum) * exp(logit - maximum),
        [batch kv_heads group query].
        """
        exponentials = torch.exp2(self.offset, out=block.space(1, self.offset.shape))
        total = exponentials.sum(-1)
        moment = torch.mul(self.offset, exponentials, out=block.over(exponentials)).sum(-1)
        return total, moment * LOG_2

    def exponentials(self, factor: Tensor, block: Block) -> Tensor:
        """exp(factor * (logit - maximum)), over the offsets."""
        # At this factor a hidden key is 0 by itself in every type.
        factor = factor[..., None].clamp(min=VANISHES)
        scaled = torch.mul(self.offset, factor, out=block.over(self.offset))
        return torch.exp2(scaled, out=block.over(scaled))


def over_blocks(
    problem: Problem, compute: Callable[[Block], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Run `compute` on each block and join its answers, all [batch kv_heads group query *rest]."""
    recorded = problem.differentiates
    if recorded:
        compute = functools.partial(
            checkpoint, compute, use_reentrant=False, preserve_rng_state=problem.dropout > 0
        )
    batch, heads, group, queries = problem.query.shape[:4]
    keys = problem.key.shape[2]
    # A window cuts the keys of a block.
    reach = keys if problem.window is None else min(keys, 2 * problem.window + BLOCK_ROWS)
    row = max(1, group * reach)
    rows = min(max(1, BLOCK // row), max(1, queries), BLOCK_ROWS)
    head_step = min(max(1, BLOCK // (row * rows)), max(1, heads))
    batch_step = min(max(1, BLOCK // (row * rows * max(1, heads))), max(1, batch))
    if rows * group < WORTH_FOLDING and not all(map(_folds, (problem.key, problem.value))):
        batch_step = 1
    size = batch_step * head_step * rows * row
    workspace = _workspace(problem, size) if size >= WORTH_KEEPING and not recorded else None
    joined = []
    for some in _slices(batch, batch_step):
        of_batch = []
        for several in _slices(heads, head_step):
            answers = [
                compute(Block(some, several, part, _keys(problem, part), not recorded, workspace))
                for part in _slices(queries, rows)
            ]
            of_batch.append(_join(answers, 3))
        joined.append(_join(of_batch, 1))
    return _join(joined, 0)


def logits_of(
    problem: Problem, block: Block, unit: float
) -> tuple[Float[Tensor, "b h g q k"], Bool[Tensor, "b|1 h|1 g|1 q|1 k|1"] | None]:
    """A block's logits times `unit`, -inf where a key is hidden, and what the mask alone allows."""
    query = block.of(problem.query, 3).to(problem.wide)
    key = block.of(problem.key, 2).to(problem.wide)
    scale = problem.scale * unit if problem.softcap is None else problem.scale / problem.softcap
    shape = (*query.shape[:4], key.shape[2])
    # Heads that share keys are stacked as rows of one product.
    left = (query * scale).reshape(shape[0] * shape[1], shape[2] * shape[3], query.shape[4])
    right = key.flatten(0, 1)
    if left.shape[1] == 1:  # one query: the same numbers, a fifth faster this way round
        space = block.space(0, (left.shape[0], shape[4], 1))
        logits = torch.bmm(right, left.mT, out=space).view(shape)
    else:
        space = block.space(0, (left.shape[0], left.shape[1], shape[4]))
        logits = torch.bmm(left, right.mT, out=space).view(shape)
    out = block.over(logits)
    if problem.softcap is not None:
        logits = torch.mul(torch.tanh(logits, out=out), problem.softcap * unit, out=out)
    where = None
    if problem.bias is not None:
        bias = _part(problem.bias, block)
        logits = torch.add(logits, bias.to(problem.wide), alpha=unit, out=out)
        where = bias > torch.finfo(bias.dtype).min
    if problem.mask is not None:
        mask = _part(problem.mask, block)
        where = mask if where is None else where & mask
    # In place, on what was just made.
    if where is not None:
        logits = logits.masked_fill_(~where, -torch.inf)
    if problem.window is not None:
        logits = logits.masked_fill_(~position_mask(problem, block), -torch.inf)
    elif problem.causal:
        # Only the last columns are beyond the edge of any row.
        edge = slice(max(0, block.rows.start - problem.first_key), block.keys.stop)
        hidden = ~position_mask(problem, block)[:, edge]
        logits[..., edge].masked_fill_(hidden, -torch.inf)
    return logits, where


def rows_of(bits: Float[Tensor, "b h g q k"], block: Block) -> Rows:
    """Offsets of logits that are given in bits, over them."""
    if bits.shape[-1] == 0:
        return Rows(bits, bits.sum(-1, keepdim=True) - torch.inf)
    maximum = bits.detach().amax(-1, keepdim=True)
    # Made finite: below an infinite top every finite logit is then far, and nothing is nothing.
    limits = torch.finfo(bits.dtype)
    top = maximum.clamp(limits.min, limits.max / 2)
    below = torch.sub(bits, top, out=block.over(bits))
    # As `sharpmax._array.bounded_offset`.
    offset = torch.nan_to_num(
        below, nan=torch.nan, posinf=0.0, neginf=NOTHING, out=block.over(below)
    )
    return Rows(offset, maximum)


def count_of(problem: Problem, block: Block, where: Tensor | None, shape: torch.Size) -> Tensor:
    """How many keys each row of a block can see, [batch kv_heads group query]."""
    if where is None:
        return reach_of(problem, block.rows).expand(shape[:4])
    if problem.causal or problem.window is not None:
        where = where & position_mask(problem, block)
    visible = where.expand(*where.shape[:4], shape[4])
    return visible.sum(-1, dtype=torch.int32).expand(shape[:4])


def weighted_sum(
    problem: Problem, block: Block, rows: Rows, factor: Float[Tensor, "b h g q"]
) -> tuple[Float[Tensor, "b h g q d"], Float[Tensor, "b h g q"]]:
    """sum_j exp(factor * offset_j) * value_j, and the same without values."""
    assert problem.value is not None
    exponentials = rows.exponentials(factor, block)
    mass = exponentials.sum(-1)
    if problem.dropout:
        exponentials = torch.dropout(exponentials, problem.dropout, True)
    value = block.of(problem.value, 2).to(problem.wide)
    pairs, stacked = value.shape[0] * value.shape[1], factor.shape[2] * factor.shape[3]
    weights = exponentials.view(pairs, stacked, value.shape[2])
    total = torch.bmm(weights, value.flatten(0, 1))
    return total.view(*factor.shape, value.shape[3]), mass


def extremes(problem: Problem) -> tuple[Tensor, Tensor]:
    """The largest and the smallest visible logit of every row, in the caller's shape."""
    with problem.full_precision():  # they may be read later, under another autocast
        maximum, minimum = over_blocks(problem, functools.partial(_extremes, problem))
    return problem.restore(maximum), problem.restore(minimum)


def _extremes(problem: Problem, block: Block) -> tuple[Tensor, Tensor]:
    bits, _ = logits_of(problem, block, BITS)
    return ends_of(bits, block)


def ends_of(bits: Float[Tensor, "b h g q k"], block: Block) -> tuple[Tensor, Tensor]:
    """The largest and the smallest visible logit of each row, in nats, of logits in bits."""
    if bits.shape[-1] == 0:
        nothing = bits.sum(-1)
        return nothing - torch.inf, nothing + torch.inf
    # A hidden key is -inf; made +inf it is never the smallest.
    upside = {"nan": torch.nan, "posinf": torch.inf, "neginf": torch.inf}
    seen = torch.nan_to_num(bits, **upside, out=block.space(1, bits.shape))
    return bits.amax(-1) * LOG_2, seen.amin(-1) * LOG_2


def position_mask(problem: Problem, block: Block) -> Bool[Tensor, "query key"]:
    """Which keys are not later than the query, and inside its window."""
    device = problem.query.device
    query = torch.arange(block.rows.start, block.rows.stop, device=device)[:, None]
    key = torch.arange(block.keys.start, block.keys.stop, device=device) + problem.first_key
    if problem.window is None:
        return key <= query
    seen = key > query - problem.window
    return seen & (key <= query if problem.causal else key < query + problem.window)


def reach_of(problem: Problem, rows: slice) -> Int[Tensor, " query"]:
    """How many keys each of these rows can see by its position."""
    keys, device = problem.key.shape[2], problem.query.device
    position = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=device)
    position = position - problem.first_key
    if problem.causal:
        stop = position + 1
    elif problem.window is not None:
        stop = position + problem.window
    else:
        stop = torch.full_like(position, keys)
    stop = stop.clamp(0, keys)
    if problem.window is None:
        return stop
    return stop - torch.minimum((position - problem.window + 1).clamp(min=0), stop)


def _keys(problem: Problem, rows: slice) -> slice:
    """The keys that any of these rows can see: a causal block stops at its last row, and a window
    begins with its first.
    """
    start, stop = 0, problem.key.shape[2]
    if problem.causal:
        stop = min(max(0, rows.stop - problem.first_key), stop)
    if problem.window is not None:
        stop = min(max(0, rows.stop - 1 + problem.window - problem.first_key), stop)
        start = min(max(0, rows.start - problem.window + 1 - problem.first_key), stop)
    return slice(start, stop)


def _part(mask: Tensor, block: Block) -> Tensor:
    """A block of a mask whose axes may have length 1."""
    whole = slice(None)
    cuts = (block.batch, block.heads, whole, block.rows, block.keys)
    sizes = zip(cuts, mask.shape, strict=True)
    return mask[tuple(whole if size == 1 else cut for cut, size in sizes)]


def _folds(tensor: Tensor | None) -> bool:
    """Whether batch and heads are one axis in memory: folding them would else copy the keys."""
    if tensor is None or tensor.shape[0] == 1:
        return True
    return tensor.stride(0) == tensor.stride(1) * tensor.shape[1]


def _workspace(problem: Problem, size: int) -> tuple[Tensor, Tensor]:
    device = problem.query.device
    return (
        torch.empty(size, dtype=problem.wide, device=device),
        torch.empty(size, dtype=problem.wide, device=device),
    )


def _slices(length: int, step: int) -> Iterator[slice]:
    """0 to length in steps; one empty slice for nothing, so that shapes survive."""
    for start in range(0, max(1, length), step):
        yield slice(start, min(start + step, length))


def _join(answers: list[tuple[Tensor, ...]], axis: int) -> tuple[Tensor, ...]:
    if len(answers) == 1:
        return answers[0]
    return tuple(torch.cat(parts, axis) for parts in zip(*answers, strict=True))
