"""Attention over keys that are split across processes, as ring and context parallelism need it.

Every process has the same queries and its own part of the keys and values. A row's statistics are
merged first, since its inverse temperature depends on all its keys; then each process weighs its
own values, and the sums are added. What travels is a few numbers and one output a row, and never a
key.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from sharpmax.ops import SoftmaxState
from sharpmax.ops._rows import NOTHING
from sharpmax.policies import PAPER, Policy, inverse_temperatures
from sharpmax.torch import blockwise
from sharpmax.torch.blocks import Block, over_blocks
from sharpmax.torch.problem import Problem, pose
from sharpmax.torch.stats import AttentionOutput, AttentionStats

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def sharded_attention(
    query: Float[Tensor, "*batch heads query dim"],
    key: Float[Tensor, "*batch kv_heads key dim"],
    value: Float[Tensor, "*batch kv_heads key value_dim"],
    *,
    group: ProcessGroup | None = None,
    attn_mask: Bool[Tensor, "*batch|1 heads|1 query|1 key|1"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    policy: Policy = PAPER,
) -> AttentionOutput:
    """`attention` over the keys of all processes of `group`, given this process's part of them.

    The parts lie one after another in the order of the ranks and may differ in length, or be empty;
    `attn_mask` is that of this process's keys. Every process gets the same answer, that of one
    process with all the keys.

    Gradients are those of the sum of the processes' losses: if all compute the same loss of the
    whole output, divide it by their number; if each one's loss is of its own share of the queries,
    nothing is to be done. The gradient of `query` on a process is what comes through its own keys;
    their sum is the whole. `max_logit` and `min_logit` have none.
    """
    problem = pose(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        softcap=softcap,
    )
    if not dist.is_initialized():
        raise RuntimeError(
            "sharded_attention needs torch.distributed: call init_process_group first, or use "
            "attention if all keys are in this process"
        )
    if is_causal:
        problem = replace(problem, first_key=_first_key(problem, group))
    with problem.full_precision():
        return _attend(problem, policy, group)


def _attend(problem: Problem, policy: Policy, group: ProcessGroup | None) -> AttentionOutput:
    state = _merged_state(problem, group)
    factor = inverse_temperatures(policy, state.entropy, state.count)
    stats = AttentionStats.of(problem, state, factor)
    output = _merged_output(problem, state, factor, group)
    return AttentionOutput(problem.restore(output).to(problem.query.dtype), stats)


def _first_key(problem: Problem, group: ProcessGroup | None) -> int:
    """This process's keys begin where those of the ranks before it end."""
    mine = torch.tensor([problem.key.shape[2]], device=problem.query.device)
    lengths = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, mine, group=group)
    return sum(int(length) for length in lengths[: dist.get_rank(group)])


def _merged_state(problem: Problem, group: ProcessGroup | None) -> SoftmaxState:
    """The statistics of every row over the keys of all processes, [batch kv_heads group query].

    The merge of `SoftmaxState`, written as two reductions: the maximum of the maxima, then the sum
    of the sums relative to it.
    """
    state = SoftmaxState(*over_blocks(problem, functools.partial(_state, problem)))
    maximum = _reduced(state.max, dist.ReduceOp.MAX, group)
    sums = _summed(torch.stack(state.relative_to(maximum)), group)
    return SoftmaxState(
        max=maximum,
        min=_reduced(state.min, dist.ReduceOp.MIN, group),
        count=_reduced(state.count, dist.ReduceOp.SUM, group),
        sum_exp=sums[0],
        sum_offset_exp=sums[1],
    )


def _state(problem: Problem, block: Block) -> tuple[Tensor, ...]:
    bits, where = blockwise.logits_of(problem, block, blockwise.BITS)
    count = blockwise.count_of(problem, block, where, bits.shape)
    _, minimum = blockwise.ends_of(bits.detach(), block)
    rows = blockwise.rows_of(bits, block)
    total, moment = rows.sums(block)
    return rows.maximum, minimum, count, total, moment


def _merged_output(
    problem: Problem, state: SoftmaxState, factor: Tensor, group: ProcessGroup | None
) -> Tensor:
    compute = functools.partial(_weighted, problem, factor)
    weighted, mass, maximum = over_blocks(problem, compute)
    # From this process's own maximum to the common one; two infinities are no distance apart, and
    # an infinite distance is made finite so that 0 times it is 0.
    distance = torch.where(maximum == state.max, 0.0, (maximum - state.max).clamp(min=NOTHING))
    share = torch.exp(factor * distance)[..., None]
    sums = _summed(torch.cat([weighted, mass[..., None]], -1) * share, group)
    # The row's top item alone has mass 1; a row without keys has none.
    return sums[..., :-1] / sums[..., -1:].clamp(min=1)


def _weighted(problem: Problem, factor: Tensor, block: Block) -> tuple[Tensor, ...]:
    bits, _ = blockwise.logits_of(problem, block, blockwise.BITS)
    rows = blockwise.rows_of(bits, block)
    weighted, mass = blockwise.weighted_sum(problem, block, rows, block.of(factor, 3))
    return weighted, mass, rows.maximum


class _Sum(torch.autograd.Function):
    """The sum over all processes; going back, the sum of their gradients.

    By hand because torch's own differentiable all_reduce is deprecated for a private one.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _reduced(tensor, dist.ReduceOp.SUM, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _reduced(gradients[0], dist.ReduceOp.SUM, ctx.group), None


def _summed(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    return _Sum.apply(tensor, group)  # type: ignore[no-untyped-call]


def _reduced(
    tensor: Tensor, operation: dist.ReduceOp.RedOpType, group: ProcessGroup | None
) -> Tensor:
    reduced = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(reduced, operation, group=group)
    return reduced
