"""Exact attention in plain torch with memory bounded by a block: every device, type and option."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from sharpmax.policies import Policy, differs_by_head, inverse_temperatures
from sharpmax.torch import blockwise
from sharpmax.torch.blocks import Block, over_blocks
from sharpmax.torch.blockwise import Rows
from sharpmax.torch.problem import Problem
from sharpmax.torch.stats import AttentionStats


def attend(
    problem: Problem, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None]:
    """Output if there are values, statistics if asked, as `reference` defines them."""
    compute = functools.partial(_attend, problem, policy, stats)
    found_output, *rest = over_blocks(problem, compute, all_heads=differs_by_head(policy))
    output = None if problem.value is None else problem.restore(found_output)
    if not stats:
        return output, None
    found = _Found(*rest)
    return output, AttentionStats(
        entropy=problem.restore(found.entropy),
        log_sum_exp=problem.restore(found.log_sum_exp),
        count=problem.restore(found.items),
        inverse_temperature=problem.restore(found.inverse_temperature),
        extremes=lambda: (problem.restore(found.maximum), problem.restore(found.minimum)),
    )


class _Found(NamedTuple):
    """What is known of each row, [batch kv_heads group query]."""

    entropy: Tensor
    log_sum_exp: Tensor
    items: Tensor
    inverse_temperature: Tensor
    maximum: Tensor
    minimum: Tensor


def _attend(problem: Problem, policy: Policy, stats: bool, block: Block) -> tuple[Tensor, ...]:
    """The output of a block of rows, and what is known of them if asked."""
    bits, where = blockwise.logits_of(problem, block, blockwise.BITS)
    count = blockwise.count_of(problem, block, where, bits.shape)
    ends = blockwise.ends_of(bits, block) if stats else ()
    rows = blockwise.rows_of(bits, block)
    total, moment = rows.sums(block)
    total = total.clamp(min=1)  # it is 1 or more, but 0 in a row without keys
    log_total = total.log()
    entropy = log_total - moment / total
    factor = inverse_temperatures(policy, entropy, count)
    output = _output(problem, block, rows, factor)
    if not stats:
        return (output,)
    # The maximum is a constant of the graph: `total` is relative to it.
    return output, *_Found(entropy, rows.maximum + log_total, count, factor, *ends)


def _output(problem: Problem, block: Block, rows: Rows, factor: Tensor) -> Tensor:
    if problem.value is None:
        return factor.new_empty(*factor.shape, 0)
    weighted, mass = blockwise.weighted_sum(problem, block, rows, factor)
    mass = mass.clamp(min=1)
    output = weighted / mass[..., None]
    if problem.sinks is not None:
        # One more item competes: the keys keep 1 / (1 + exp(sink - log_sum_exp)) of the sharpened
        # row. The top of a row without keys is made a number; its output is zero already.
        sinks = problem.sinks[block.heads].to(problem.wide)[None, :, :, None]
        top = rows.maximum.clamp(min=torch.finfo(problem.wide).min)
        output = output * torch.sigmoid(factor * top + mass.log() - sinks)[..., None]
    return output.to(problem.query.dtype)
