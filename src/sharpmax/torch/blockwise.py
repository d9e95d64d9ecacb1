"""What is computed of a block of query rows: logits, offsets, statistics, weighted values."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sharpmax.ops._rows import NOTHING, VANISHES
from sharpmax.torch.blocks import Block, over_blocks, part_of, position_mask, reach_of
from sharpmax.torch.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

LOG_2 = math.log(2)
BITS = 1 / LOG_2
"""One nat in bits."""


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
        bias = part_of(problem.bias, block)
        logits = torch.add(logits, bias.to(problem.wide), alpha=unit, out=out)
        where = bias > torch.finfo(bias.dtype).min
    if problem.mask is not None:
        mask = part_of(problem.mask, block)
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
