"""Attention over keys that are split across processes, as ring and context parallelism need it.

Every process has the same queries and its own shard of the keys and values. The statistics of a row
are merged first, because its inverse temperature depends on all keys. Then each process weighs its
own values, and the sums are added. The processes exchange a few numbers and one output per row,
never a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from sharpmax.ops import SoftmaxState
from sharpmax.ops._rows import NOTHING
from sharpmax.policies import PAPER, Policy, inverse_temperatures
from sharpmax.torch import blockwise
from sharpmax.torch.blockwise import Block, map_blocks
from sharpmax.torch.interface import AttentionOutput, AttentionStats, Inputs, prepare_inputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def sharded_attention(
    query: Float[Tensor, "*batch_heads query dim"],
    key: Float[Tensor, "*#kv_batch_heads key dim"],
    value: Float[Tensor, "*#kv_batch_heads key value_dim"],
    *,
    group: ProcessGroup | None = None,
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    policy: Policy = PAPER,
) -> AttentionOutput:
    """Compute `attention` over the keys of all processes, given this process's shard of them.

    The entropy of a row, and with it the inverse temperature, depends on all keys. Merging the
    outputs of separate calls would sharpen each shard on its own.

    The shards follow each other in the order of the ranks. They may differ in length or be empty.
    Every process gets the same answer, that of one process with all the keys.

    Gradients are those of the sum of all processes' losses. If every process computes the same loss
    of the whole output, divide it by the number of processes; if each loss covers only the
    process's own queries, leave it as it is. The gradient of `query` on a process comes from its
    own keys; add the gradients of all processes for the whole. `max_logit` and `min_logit` have no
    gradient.

    Args:
        query: [*batch, heads, query, dim], the same on every process.
        key: [*batch, kv_heads, key, dim], this process's keys.
        value: [*batch, kv_heads, key, value_dim], this process's values.
        group: The processes; by default all.
        attn_mask: Mask of this process's keys, boolean (True = may be seen) or added to the logits.
        is_causal: Query i sees keys 0 to i of the whole sequence.
        scale: Factor on the products; by default 1 / sqrt(dim).
        enable_gqa: Let query heads share key heads.
        softcap: Replace a logit s by softcap * tanh(s / softcap).
        policy: Function of (entropy, count) that returns the inverse temperature of each row.

    Returns:
        The output and the statistics over the keys of all processes.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit, or a number is out of range.
        RuntimeError: If torch.distributed is not initialised.
    """
    inputs = prepare_inputs(
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
        inputs = inputs._replace(first_key=_first_key(inputs, group))
    with inputs.full_precision():
        state = _merge_states(inputs, group)
        factor = inverse_temperatures(policy, state.entropy, state.count, state.varentropy)
        output = _merge_outputs(inputs, state, factor, group)
    stats = AttentionStats.from_state(inputs, state, factor)
    return AttentionOutput(inputs.restore_shape(output).to(inputs.query.dtype), stats)


def _first_key(inputs: Inputs, group: ProcessGroup | None) -> int:
    """Return the position of this process's first key: the keys of all lower ranks."""
    length = torch.tensor([inputs.key.shape[2]], device=inputs.query.device)
    lengths = [torch.zeros_like(length) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, length, group=group)
    return sum(int(length) for length in lengths[: dist.get_rank(group)])


def _merge_states(inputs: Inputs, group: ProcessGroup | None) -> SoftmaxState:
    """Return the statistics of every row over all processes, [batch kv_heads group query].

    This is the merge of `SoftmaxState` as two reductions: the maximum of the maxima, then the sum
    of the sums relative to it.
    """

    def compute(block: Block) -> tuple[Tensor, ...]:
        bits, where = blockwise.compute_logits(inputs, block)
        count = blockwise.count_visible(inputs, block, where, bits.shape)
        _, minimum = blockwise.find_extremes(bits.detach(), block)
        offsets = blockwise.subtract_maximum(bits, block)
        total, moment, squared = offsets.sums(block, squares=True)
        return offsets.maximum, minimum, count, total, moment, squared

    state = SoftmaxState(*map_blocks(inputs, compute))
    maximum = _all_reduce(state.max, dist.ReduceOp.MAX, group)
    sums = _sum(torch.stack(state.relative_to(maximum)), group)
    return SoftmaxState(
        max=maximum,
        min=_all_reduce(state.min, dist.ReduceOp.MIN, group),
        count=_all_reduce(state.count, dist.ReduceOp.SUM, group),
        sum_exp=sums[0],
        sum_offset_exp=sums[1],
        sum_squared_offset_exp=sums[2],
    )


def _merge_outputs(
    inputs: Inputs,
    state: SoftmaxState,
    factor: Float[Tensor, "batch kv_heads group query"],
    group: ProcessGroup | None,
) -> Float[Tensor, "batch kv_heads group query value_dim"]:
    """Return the sharpened output of every row over the keys of all processes."""

    def compute(block: Block) -> tuple[Tensor, ...]:
        bits, _ = blockwise.compute_logits(inputs, block)
        offsets = blockwise.subtract_maximum(bits, block)
        weighted, mass = blockwise.sum_values(inputs, block, offsets, block.take_rows(factor))
        return weighted, mass, offsets.maximum

    weighted, mass, maximum = map_blocks(inputs, compute)
    # From this process's own maximum to the common one. Two equal infinities have distance 0; an
    # infinite distance is made finite, so that a factor of 0 times it is 0.
    distance = torch.where(maximum == state.max, 0.0, (maximum - state.max).clamp(min=NOTHING))
    share = torch.exp(factor * distance)[..., None]
    sums = _sum(torch.cat([weighted, mass[..., None]], -1) * share, group)
    # The row's top item alone has mass 1; a row without keys has none.
    return sums[..., :-1] / sums[..., -1:].clamp(min=1)


class _Sum(torch.autograd.Function):
    """The sum over all processes; its backward pass sums their gradients.

    Torch's own differentiable all_reduce is deprecated in favour of a private one.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _all_reduce(tensor, dist.ReduceOp.SUM, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradients[0], dist.ReduceOp.SUM, ctx.group), None


def _sum(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    return _Sum.apply(tensor, group)  # type: ignore[no-untyped-call]


def _all_reduce(
    tensor: Tensor, operation: dist.ReduceOp.RedOpType, group: ProcessGroup | None
) -> Tensor:
    reduced = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(reduced, operation, group=group)
    return reduced
