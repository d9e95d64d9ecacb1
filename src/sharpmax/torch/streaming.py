"""Exact attention in plain torch with memory bounded by a block: every device, type and option."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sharpmax.ops._rows import prepare
from sharpmax.ops.inverse_temperature import solver
from sharpmax.policies import (
    Policy,
    differs_by_head,
    inverse_temperatures,
    needs_rows,
    traits,
)
from sharpmax.torch import blockwise
from sharpmax.torch.blockwise import LOG_2, Block, Offsets, map_blocks
from sharpmax.torch.interface import AttentionStats, Inputs


def attend(
    inputs: Inputs, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None]:
    """Return the output if there are values and statistics if asked, as `reference` defines."""
    compute = functools.partial(_attend_block, inputs, policy, stats)
    output, *rest = map_blocks(inputs, compute, all_heads=differs_by_head(policy))
    restored = None if inputs.value is None else inputs.restore_shape(output)
    if not stats:
        return restored, None
    restored_rows = map(inputs.restore_shape, rest)
    entropy, log_sum_exp, count, factor, varentropy, maximum, minimum = restored_rows
    return restored, AttentionStats(
        entropy=entropy,
        log_sum_exp=log_sum_exp,
        count=count,
        inverse_temperature=factor,
        details=lambda: (varentropy, maximum, minimum),
    )


def _attend_block(inputs: Inputs, policy: Policy, stats: bool, block: Block) -> tuple[Tensor, ...]:
    """Return the output of a block of rows and, if asked, seven statistics of each row."""
    bits, where = blockwise.compute_logits(inputs, block)
    count = blockwise.count_visible(inputs, block, where, bits.shape)
    extremes = blockwise.find_extremes(bits, block) if stats else ()
    # In memory of its own, before the offsets take the place of the logits.
    solve = solver(prepare(bits * LOG_2, None, -1)) if needs_rows(policy) else None
    offsets = blockwise.subtract_maximum(bits, block)
    squares = stats or traits(policy).needs_varentropy
    total, moment, *squared = offsets.sums(block, squares=squares)
    varentropy = blockwise.find_varentropy(total, moment, squared[0]) if squares else None
    total = total.clamp(min=1)  # at least 1, except for the 0 of a row without keys
    log_total = total.log()
    entropy = log_total - moment / total
    factor = inverse_temperatures(policy, entropy, count, varentropy, solve)
    output = _output(inputs, block, offsets, factor)
    if not stats or varentropy is None:
        return (output,)
    # The maximum is a constant of the graph: `total` is relative to it.
    return output, entropy, offsets.maximum + log_total, count, factor, varentropy, *extremes


def _output(inputs: Inputs, block: Block, offsets: Offsets, factor: Tensor) -> Tensor:
    if inputs.value is None:
        return factor.new_empty(*factor.shape, 0)
    weighted, mass = blockwise.sum_values(inputs, block, offsets, factor)
    mass = mass.clamp(min=1)
    output = weighted / mass[..., None]
    if inputs.sinks is not None:
        # One more item competes: the keys keep 1 / (1 + exp(sink - log_sum_exp)) of the sharpened
        # row. The maximum of a row without keys is made finite; its output is zero already.
        sinks = inputs.sinks[block.heads].to(inputs.stats_dtype)[None, :, :, None]
        maximum = offsets.maximum.clamp(min=torch.finfo(inputs.stats_dtype).min)
        output = output * torch.sigmoid(factor * maximum + mass.log() - sinks)[..., None]
    return output.to(inputs.query.dtype)
