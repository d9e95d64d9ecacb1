"""Adaptive attention in two passes of Triton kernels, with exact gradients.

    pass one:    entropy_i, log_sum_exp_i from queries and keys
    policy:      b_i = policy(entropy_i, count_i), any function of tensors
    pass two:    output_i = sum_j softmax_j(b_i * logit_ij) * value_j

Memory grows with the rows only. Each pass is an autograd function with kernels for its gradient;
pass two has one in b. The policy between them is ordinary torch, so a learned policy needs nothing
more. A policy that does not need the entropy skips pass one. Written for CUDA; on a CPU only
Triton's interpreter runs it.
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
from sharpmax.torch import blockwise
from sharpmax.torch.interface import AttentionStats, Inputs
from sharpmax.torch.triton import launch
from sharpmax.torch.triton.launch import (
    Settings,
    arguments,
    bias_arguments,
    launch_over_keys,
    launch_over_rows,
    modules,
    value_arguments,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LOG_2 = math.log(2)

LARGEST_HEAD = 256
"""A tile of larger heads would not fit into the memory of a multiprocessor."""


def refusal(inputs: Inputs) -> str | None:
    """Return which part of the call this implementation does not support, or None."""
    if inputs.dropout:
        return f"dropout_p={inputs.dropout}"
    sizes = [inputs.query.shape[-1], *([] if inputs.value is None else inputs.value.shape[-1:])]
    if max(sizes) > LARGEST_HEAD:
        return f"heads of size {max(sizes)} (at most {LARGEST_HEAD})"
    device = inputs.query.device.type
    if device not in ("cpu", "cuda"):
        return f"{device} tensors (CUDA only)"
    modules = launch.find_modules()
    if modules is None:
        return "running without triton (pip install 'sharpmax[triton]')"
    if device == "cpu" and not modules.interpreted:
        return "cpu tensors (CUDA only; for tests, set TRITON_INTERPRET=1 in the environment)"
    if inputs.stats_dtype == torch.float64 and not modules.interpreted:
        return "float64"
    return None


def attend(
    inputs: Inputs, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None]:
    """Return the output if there are values and statistics if asked; `refusal` must be None."""
    settings, heads = Settings.of(inputs), inputs.query.shape[1:3]
    query = inputs.query.flatten(1, 2)
    bias = None if inputs.bias is None else inputs.bias.flatten(1, 2)
    count = _count_visible(inputs, settings)
    if stats or needs_entropy(policy):
        statistics = _statistics(settings, query, inputs.key, bias)
        entropy, log_sum_exp, variance, top, low = (row.unflatten(1, heads) for row in statistics)
    else:
        entropy = torch.zeros(count.shape, dtype=inputs.stats_dtype, device=count.device)
        variance = None
    factor = inverse_temperatures(policy, entropy, count, variance)
    output = None
    if inputs.value is not None:
        sinks = None if inputs.sinks is None else inputs.sinks.to(inputs.stats_dtype).flatten()
        rows = factor.to(inputs.stats_dtype).flatten(1, 2)
        output = _attention(settings, query, inputs.key, inputs.value, rows, bias, sinks)
        output = inputs.restore_shape(output.unflatten(1, heads))
    if not stats:
        return output, None
    details = tuple(map(inputs.restore_shape, (variance, top, low)))
    # Those of the kernel have no gradient.
    again = functools.partial(blockwise.compute_details, inputs)
    return output, AttentionStats(
        entropy=inputs.restore_shape(entropy),
        log_sum_exp=inputs.restore_shape(log_sum_exp),
        count=inputs.restore_shape(count),
        inverse_temperature=inputs.restore_shape(factor),
        details=again if inputs.needs_gradient else lambda: details,
    )


class _Statistics(torch.autograd.Function):
    """Pass one: (query, key, bias) -> entropy, log_sum_exp, varentropy and extremes, in nats."""

    @staticmethod
    def forward(
        ctx: Any, settings: Settings, query: Tensor, key: Tensor, bias: Tensor | None
    ) -> Any:
        query, key = _with_dense_last_axis(query), _with_dense_last_axis(key)
        top, log_total, mean, variance, low = rows = _empty_rows(settings, query, 5)
        names = ("top_out", "log_total_out", "mean_out", "variance_out", "low_out")
        given = arguments(settings, query, key, bias)
        given |= dict(zip(names, rows, strict=True))
        launch_over_rows(modules().kernels.statistics, given)
        ctx.settings = settings
        ctx.save_for_backward(query, key, bias, top, log_total, mean)
        others = variance * LOG_2**2, top * LOG_2, low * LOG_2
        ctx.mark_non_differentiable(*others)
        return (log_total - mean) * LOG_2, (top + log_total) * LOG_2, *others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_entropy: Tensor, d_total: Tensor, *_: Tensor) -> Any:
        query, key, bias, top, log_total, mean = ctx.saved_tensors
        _, query_needs, key_needs, bias_needs = ctx.needs_input_grad
        given = arguments(ctx.settings, query, key, bias)
        occupied = top != -torch.inf  # the gradient of a row without keys may be NaN
        given |= {
            "top_in": top,
            "log_total_in": log_total,
            "mean_in": mean,
            "d_entropy_in": torch.where(occupied, d_entropy, 0.0).contiguous(),
            "d_total_in": torch.where(occupied, d_total, 0.0).contiguous(),
        }
        d_query, d_key = _empty_gradient(query), _empty_gradient(key)
        d_bias = _bias_gradient(ctx.settings, bias, bias_needs)
        if query_needs or bias_needs:
            more = {"d_query": d_query} | bias_arguments(d_bias, given)
            launch_over_rows(modules().gradients.statistics_rows, given | more)
        if key_needs:
            launch_over_keys(modules().gradients.statistics_keys, given | {"d_key": d_key})
        return None, d_query, d_key, None if d_bias is None else d_bias.to(bias.dtype)


class _Attention(torch.autograd.Function):
    """Pass two: (query, key, value, b, bias, sinks) -> output."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: Settings,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        factor: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
    ) -> Tensor:
        query, key, value = map(_with_dense_last_axis, (query, key, value))
        factor = factor.contiguous()
        sinks = None if sinks is None else sinks.contiguous()
        output = query.new_empty(*query.shape[:3], value.shape[3])
        top, log_total = _empty_rows(settings, query, 2)
        given = arguments(settings, query, key, bias) | value_arguments(value)
        given |= {"factor": factor, "sinks": sinks, "SINKS": sinks is not None}
        given |= {"output": output, "top_out": top, "log_total_out": log_total}
        launch_over_rows(modules().kernels.attend, given)
        ctx.settings = settings
        ctx.save_for_backward(query, key, value, factor, bias, sinks, output, top, log_total)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> Any:
        query, key, value, factor, bias, sinks, output, top, log_total = ctx.saved_tensors
        needs = dict(zip("_qkvfbs", ctx.needs_input_grad, strict=True))
        d_output = d_output.contiguous()
        wide = ctx.settings.stats_dtype
        delta = (d_output.to(wide) * output.to(wide)).sum(-1)
        given = arguments(ctx.settings, query, key, bias) | value_arguments(value)
        given |= {"factor": factor, "top_in": top, "log_total_in": log_total}
        given |= {"delta_in": delta, "d_output": d_output}
        d_query, d_key, d_value, d_factor = map(_empty_gradient, (query, key, value, factor))
        d_bias = _bias_gradient(ctx.settings, bias, needs["b"])
        if needs["q"] or needs["f"] or needs["b"]:
            more = {"d_query": d_query, "d_factor": d_factor} | bias_arguments(d_bias, given)
            launch_over_rows(modules().gradients.attend_rows, given | more)
        if needs["k"] or needs["v"]:
            more = {"d_key": d_key, "d_value": d_value}
            launch_over_keys(modules().gradients.attend_keys, given | more)
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        d_sinks = _sink_gradient(sinks, top, log_total, delta) if needs["s"] else None
        return None, d_query, d_key, d_value, d_factor, d_bias, d_sinks


_statistics: Callable[..., tuple[Tensor, ...]] = _Statistics.apply
_attention: Callable[..., Tensor] = _Attention.apply


def _sink_gradient(
    sinks: Tensor, top: Tensor, log_total: Tensor, delta: Tensor
) -> Float[Tensor, " heads"]:
    """Return -share * delta: the value of a sink is zero."""
    bits = sinks[:, None] / LOG_2
    share = torch.exp2(bits - top - log_total)
    return -(torch.where(bits == -torch.inf, 0.0, share) * delta).sum((0, 2))


def _count_visible(inputs: Inputs, settings: Settings) -> Int[Tensor, "batch kv_heads group query"]:
    """Return how many keys each row can see."""
    rows, keys = inputs.query.shape[:4], inputs.key.shape[2]
    if inputs.mask is None and inputs.bias is None:
        return blockwise.count_by_position(inputs, slice(0, rows[3])).expand(rows)
    bias = None if inputs.bias is None else inputs.bias.flatten(1, 2)
    count = launch.count_visible(settings, bias, rows[3], keys)
    return count.unflatten(1, rows[1:3] if count.shape[1] > 1 else (1, 1)).expand(rows)


def _with_dense_last_axis(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _empty_rows(
    settings: Settings, query: Float[Tensor, "batch heads query dim"], how_many: int
) -> list[Float[Tensor, "batch heads query"]]:
    """Allocate numbers for every row."""
    shape, device = query.shape[:3], query.device
    return [torch.empty(shape, dtype=settings.stats_dtype, device=device) for _ in range(how_many)]


def _empty_gradient(tensor: Tensor) -> Tensor:
    """Allocate a contiguous gradient."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _bias_gradient(settings: Settings, bias: Tensor | None, needed: bool) -> Tensor | None:
    """Allocate zeros: the gradient of a bias is added up."""
    if bias is None or not needed:
        return None
    return torch.zeros(bias.shape, dtype=settings.stats_dtype, device=bias.device)
