"""Adaptive attention in two passes of kernels of our own: every logit that `reference` knows, with
exact gradients, and memory that grows with the rows.

    pass one:    entropy_i, log_sum_exp_i from queries and keys
    policy:      b_i = policy(entropy_i, count_i), any function of tensors
    pass two:    output_i = sum_j softmax_j(b_i * logit_ij) * value_j

Each pass is a function of autograd with kernels for its gradient; pass two has one in b. The policy
between them is ordinary torch, so one that is learned needs nothing more. A policy that does not
look at the entropy skips pass one. Written for CUDA; on a CPU only Triton's interpreter runs it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sharpmax.policies import Policy, inverse_temperatures, needs_entropy
from sharpmax.torch import blockwise, triton_launch
from sharpmax.torch.blocks import reach_of
from sharpmax.torch.problem import Problem
from sharpmax.torch.stats import AttentionStats
from sharpmax.torch.triton_launch import (
    Scene,
    arguments,
    bias_arguments,
    modules,
    over_keys,
    over_rows,
    value_arguments,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LOG_2 = math.log(2)

LARGEST_HEAD = 256
"""A tile of larger heads would not fit into a multiprocessor's memory."""


def refusal(problem: Problem) -> str | None:
    """What of the problem this implementation cannot do; None if it can do all of it."""
    if problem.dropout:
        return f"dropout_p={problem.dropout}"
    sizes = [problem.query.shape[-1], *([] if problem.value is None else problem.value.shape[-1:])]
    if max(sizes) > LARGEST_HEAD:
        return f"heads of size {max(sizes)} (at most {LARGEST_HEAD})"
    device = problem.query.device.type
    if device not in ("cpu", "cuda"):
        return f"{device} tensors (CUDA only)"
    found = triton_launch.find()
    if found is None:
        return "anything without triton (pip install 'sharpmax[triton]')"
    if device == "cpu" and not found.interpreted:
        return (
            "cpu tensors (CUDA only; slowly, for tests, with TRITON_INTERPRET=1 in the environment)"
        )
    if problem.wide == torch.float64 and not found.interpreted:
        return "float64"
    return None


def attend(
    problem: Problem, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None]:
    """Output if there are values, statistics if asked; `refusal` must have been None."""
    scene, heads = Scene.of(problem), problem.query.shape[1:3]
    query = problem.query.flatten(1, 2)
    bias = None if problem.bias is None else problem.bias.flatten(1, 2)
    count = _count(problem, scene)
    if stats or needs_entropy(policy):
        found = _statistics(scene, query, problem.key, bias)
        entropy, total, top, low = (row.unflatten(1, heads) for row in found)
    else:
        entropy = torch.zeros(count.shape, dtype=problem.wide, device=count.device)
    factor = inverse_temperatures(policy, entropy, count)
    output = None
    if problem.value is not None:
        sinks = None if problem.sinks is None else problem.sinks.to(problem.wide).flatten()
        rows = factor.to(problem.wide).flatten(1, 2)
        output = _attention(scene, query, problem.key, problem.value, rows, bias, sinks)
        output = problem.restore(output.unflatten(1, heads))
    if not stats:
        return output, None
    ends = problem.restore(top), problem.restore(low)
    # Those of the kernel have no gradient.
    recorded = functools.partial(blockwise.extremes, problem)
    return output, AttentionStats(
        entropy=problem.restore(entropy),
        log_sum_exp=problem.restore(total),
        count=problem.restore(count),
        inverse_temperature=problem.restore(factor),
        extremes=recorded if problem.differentiates else lambda: ends,
    )


class _Statistics(torch.autograd.Function):
    """Pass one: (query, key, bias) -> entropy, log_sum_exp, max_logit, min_logit, in nats."""

    @staticmethod
    def forward(ctx: Any, scene: Scene, query: Tensor, key: Tensor, bias: Tensor | None) -> Any:
        query, key = _dense(query), _dense(key)
        top, log_total, mean, low = rows = _rows(scene, query, 4)
        names = ("top_out", "log_total_out", "mean_out", "low_out")
        given = arguments(scene, query, key, bias)
        given |= dict(zip(names, rows, strict=True))
        over_rows(modules().kernels.statistics, given)
        ctx.scene = scene
        ctx.save_for_backward(query, key, bias, top, log_total, mean)
        maximum, minimum = top * LOG_2, low * LOG_2
        ctx.mark_non_differentiable(maximum, minimum)
        return (log_total - mean) * LOG_2, (top + log_total) * LOG_2, maximum, minimum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_entropy: Tensor, d_total: Tensor, *_: Tensor) -> Any:
        query, key, bias, top, log_total, mean = ctx.saved_tensors
        _, query_needs, key_needs, bias_needs = ctx.needs_input_grad
        given = arguments(ctx.scene, query, key, bias)
        seen = top != -torch.inf  # what is asked of a row without keys may be NaN
        given |= {
            "top_in": top,
            "log_total_in": log_total,
            "mean_in": mean,
            "d_entropy_in": torch.where(seen, d_entropy, 0.0).contiguous(),
            "d_total_in": torch.where(seen, d_total, 0.0).contiguous(),
        }
        d_query, d_key, d_bias = _room(query), _room(key), _bias_room(ctx.scene, bias, bias_needs)
        if query_needs or bias_needs:
            more = {"d_query": d_query} | bias_arguments(d_bias, given)
            over_rows(modules().gradients.statistics_rows, given | more)
        if key_needs:
            over_keys(modules().gradients.statistics_keys, given | {"d_key": d_key})
        return None, d_query, d_key, None if d_bias is None else d_bias.to(bias.dtype)


class _Attention(torch.autograd.Function):
    """Pass two: (query, key, value, b, bias, sinks) -> output."""

    @staticmethod
    def forward(
        ctx: Any,
        scene: Scene,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        factor: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
    ) -> Tensor:
        query, key, value, factor = _dense(query), _dense(key), _dense(value), factor.contiguous()
        sinks = None if sinks is None else sinks.contiguous()
        output = query.new_empty(*query.shape[:3], value.shape[3])
        top, log_total = _rows(scene, query, 2)
        given = arguments(scene, query, key, bias) | value_arguments(value)
        given |= {"factor": factor, "sinks": sinks, "SINKS": sinks is not None}
        given |= {"output": output, "top_out": top, "log_total_out": log_total}
        over_rows(modules().kernels.attend, given)
        ctx.scene = scene
        ctx.save_for_backward(query, key, value, factor, bias, sinks, output, top, log_total)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> Any:
        query, key, value, factor, bias, sinks, output, top, log_total = ctx.saved_tensors
        needs = dict(zip("_qkvfbs", ctx.needs_input_grad, strict=True))
        d_output = d_output.contiguous()
        delta = (d_output.to(ctx.scene.wide) * output.to(ctx.scene.wide)).sum(-1)
        given = arguments(ctx.scene, query, key, bias) | value_arguments(value)
        given |= {"factor": factor, "top_in": top, "log_total_in": log_total}
        given |= {"delta_in": delta, "d_output": d_output}
        d_query, d_key, d_value, d_factor = map(_room, (query, key, value, factor))
        d_bias = _bias_room(ctx.scene, bias, needs["b"])
        if needs["q"] or needs["f"] or needs["b"]:
            more = {"d_query": d_query, "d_factor": d_factor} | bias_arguments(d_bias, given)
            over_rows(modules().gradients.attend_rows, given | more)
        if needs["k"] or needs["v"]:
            more = {"d_key": d_key, "d_value": d_value}
            over_keys(modules().gradients.attend_keys, given | more)
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        d_sinks = _sink_gradient(sinks, top, log_total, delta) if needs["s"] else None
        return None, d_query, d_key, d_value, d_factor, d_bias, d_sinks


_statistics: Callable[..., tuple[Tensor, ...]] = _Statistics.apply
_attention: Callable[..., Tensor] = _Attention.apply


def _sink_gradient(
    sinks: Tensor, top: Tensor, log_total: Tensor, delta: Tensor
) -> Float[Tensor, " heads"]:
    """A sink's value is zero, so its logit has the gradient -share * delta."""
    bits = sinks[:, None] / LOG_2
    share = torch.exp2(bits - top - log_total)
    return -(torch.where(bits == -torch.inf, 0.0, share) * delta).sum((0, 2))


def _count(problem: Problem, scene: Scene) -> Int[Tensor, "batch kv_heads group query"]:
    """How many keys each row can see."""
    rows, keys = problem.query.shape[:4], problem.key.shape[2]
    if problem.mask is None and problem.bias is None:
        return reach_of(problem, slice(0, rows[3])).expand(rows)
    bias = None if problem.bias is None else problem.bias.flatten(1, 2)
    found = triton_launch.count(scene, bias, rows[3], keys)
    return found.unflatten(1, rows[1:3] if found.shape[1] > 1 else (1, 1)).expand(rows)


def _dense(tensor: Tensor) -> Tensor:
    """The last axis without gaps; the others may have any."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _rows(scene: Scene, query: Tensor, how_many: int) -> list[Float[Tensor, "batch heads query"]]:
    """Room for numbers of every row."""
    shape, device = query.shape[:3], query.device
    return [torch.empty(shape, dtype=scene.wide, device=device) for _ in range(how_many)]


def _room(tensor: Tensor) -> Tensor:
    """Room for a gradient, without gaps."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _bias_room(scene: Scene, bias: Tensor | None, needed: bool) -> Tensor | None:
    """The gradient of a bias begins at zero: it is added up."""
    if bias is None or not needed:
        return None
    return torch.zeros(bias.shape, dtype=scene.wide, device=bias.device)
