"""A problem in blocks of query rows: which rows and keys a block has, and where it may put its
numbers.

    memory = two blocks of BLOCK numbers, whatever the number of queries

A block has whole rows, over all the keys that they can see by their position, so that queries and
keys are multiplied once. Under autograd a block is computed again on the way back instead of being
kept. Otherwise each step overwrites the last one, in memory that the next block uses again: `out=`
is None in the first case, so that one text serves both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sharpmax.torch.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

BLOCK = 1 << 21
"""Logits a block, 8 MB of float32."""

BLOCK_ROWS = 128
"""Query rows of one head in a block; it takes more heads rather than more rows. Measured on two
cores with 8 heads of 512 to 8,192 tokens: 64 or 256 rows, or half of BLOCK, took 1.0 to 1.5 times
as long; more rows also waste work beyond the causal edge."""

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


def over_blocks(
    problem: Problem, compute: Callable[[Block], tuple[Tensor, ...]], *, all_heads: bool = False
) -> tuple[Tensor, ...]:
    """Run `compute` on each block and join its answers, all [batch kv_heads group query *rest].

    With `all_heads` every block has all of them, and fewer rows.
    """
    recorded = problem.differentiates
    if recorded:
        compute = functools.partial(
            checkpoint, compute, use_reentrant=False, preserve_rng_state=problem.dropout > 0
        )
    batch, heads, group, queries = problem.query.shape[:4]
    keys = problem.key.shape[2]
    # A window cuts the keys of a block.
    reach = keys if problem.window is None else min(keys, 2 * problem.window + BLOCK_ROWS)
    row = max(1, group * reach * (heads if all_heads else 1))
    rows = min(max(1, BLOCK // row), max(1, queries), BLOCK_ROWS)
    if all_heads:
        row, head_step = row // max(1, heads), max(1, heads)
    else:
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


def part_of(mask: Tensor, block: Block) -> Tensor:
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
