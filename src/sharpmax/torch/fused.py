"""Adaptive attention by two calls of a fused kernel that returns the log-sum-exp.

With V = K, attention returns the mean key, from which the mean logit follows:

    entropy_i = log_sum_exp_i - scale * <q_i, attention(Q, K, V=K)_i>

The inverse temperature of a row is a factor on its query:

    softmax(b_i * scale * <q_i, K>) V = attention(b_i * q_i, K, V)

Both need a logit that is a plain scaled product, so softcap and additive masks are refused. A
policy that does not need the entropy takes one call only.

Half precision: a mean key rounded to bfloat16 adds up to 0.03 nats of error to an entropy, so
statistics that are returned are always computed in float32. On a CPU everything is: the operator is
no faster there in half precision (measured: bfloat16 1.0, float16 2.0 times the time of float32).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.policies import Policy, inverse_temperatures, needs_entropy
from sharpmax.torch import blockwise, fused_kernels, products
from sharpmax.torch.counts import count_visible
from sharpmax.torch.interface import AttentionStats, Inputs

if TYPE_CHECKING:
    from jaxtyping import Float, Int

FEW_KEYS = 32
"""Up to here the kernel may lose a NaN, where the keys do not fill a vector of the processor.
Beyond, looking at its answers is enough, and faster."""


def refusal(inputs: Inputs) -> str | None:
    """Return which part of the call this implementation does not support, or None."""
    if inputs.softcap is not None:
        return f"softcap={inputs.softcap}"
    if inputs.bias is not None:
        return f"an additive attn_mask ({inputs.bias.dtype}; a boolean one is supported)"
    if inputs.window is not None:
        return f"window={inputs.window}"
    if inputs.dropout:
        return f"dropout_p={inputs.dropout}"
    if inputs.sinks is not None and inputs.needs_gradient:
        return "gradients with sinks"
    if inputs.value is not None and inputs.value.shape[-1] != inputs.query.shape[-1]:
        sizes = f"{inputs.query.shape[-1]} and {inputs.value.shape[-1]}"
        return f"keys and values of different sizes ({sizes})"
    if 0 in inputs.query.shape or 0 in inputs.key.shape:
        return f"an empty query or key, {tuple(inputs.query.shape)}, {tuple(inputs.key.shape)}"
    for dtype in dict.fromkeys((inputs.stats_dtype, _output_dtype(inputs))):
        kernel = fused_kernels.find_kernel(inputs.query, dtype, inputs.mask)
        if isinstance(kernel, str):
            return f"these tensors ({kernel})"
    return None


def attend(
    inputs: Inputs, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None] | None:
    """Return the output if there are values and statistics if asked; `refusal` must be None.

    None if a number is not finite: the kernels lose some NaN and spread others from hidden keys.
    """
    checked = inputs.needs_gradient or inputs.key.shape[2] <= FEW_KEYS
    if checked and not products.are_finite(inputs.query, inputs.key, inputs.value):
        return None
    count = count_visible(inputs)
    if stats or needs_entropy(policy):
        dtype = inputs.stats_dtype if stats else _output_dtype(inputs)
        entropy, log_sum_exp = _entropy(inputs, count, dtype, differentiate_log_sum_exp=stats)
    else:
        entropy = torch.zeros(count.shape, dtype=inputs.stats_dtype, device=count.device)
    factor = inverse_temperatures(policy, entropy, count)
    output = None if inputs.value is None else _sharpened_output(inputs, factor, count)
    answer = entropy if output is None else output
    if not checked and not products.are_finite(answer):
        return None
    if not stats:
        return output, None
    return output, AttentionStats(
        entropy=inputs.restore_shape(entropy),
        log_sum_exp=inputs.restore_shape(log_sum_exp),
        count=inputs.restore_shape(count),
        inverse_temperature=inputs.restore_shape(factor),
        details=functools.partial(blockwise.compute_details, inputs),
    )


def _output_dtype(inputs: Inputs) -> torch.dtype:
    """Return the type in which the output is computed: on a GPU half precision stays half."""
    return inputs.stats_dtype if inputs.query.device.type == "cpu" else inputs.query.dtype


def _run_kernel(
    inputs: Inputs, dtype: torch.dtype, *tensors: Tensor
) -> tuple[
    Float[Tensor, "batch kv_heads group query dim"], Float[Tensor, "batch kv_heads group query"]
]:
    """Call the fused kernel on query, key and value; return output and log-sum-exp."""
    heads = inputs.query.shape[1:3]
    mask = inputs.mask
    if mask is not None:
        mask = mask.expand(*mask.shape[:4], inputs.key.shape[2]).flatten(1, 2)
    kernel = fused_kernels.find_kernel(inputs.query, dtype, inputs.mask)
    assert isinstance(kernel, fused_kernels.Kernel)
    query, key, value = (tensor.to(dtype) for tensor in tensors)
    output, log_sum_exp = fused_kernels.run(
        kernel, query.flatten(1, 2), key, value, mask, inputs.causal, inputs.scale
    )
    return output.unflatten(1, heads), log_sum_exp.unflatten(1, heads)


def _entropy(
    inputs: Inputs,
    count: Int[Tensor, "batch kv_heads group query"],
    dtype: torch.dtype,
    *,
    differentiate_log_sum_exp: bool,
) -> tuple[
    Float[Tensor, "batch kv_heads group query"], Float[Tensor, "batch kv_heads group query"]
]:
    """Return entropy and log-sum-exp of every row, with exact gradients.

    The kernel's log-sum-exp has no gradient, and the entropy does not need it: with p fixed, the
    gradients of log_sum_exp and of the mean logit cancel. What is left runs through p alone, which
    is the gradient of the output with the outer query and V = K held constant.
    """
    query, key = inputs.query, inputs.key
    mean_key, log_sum_exp = _run_kernel(inputs, dtype, query, key, key.detach())
    fixed_query = query.detach().to(inputs.stats_dtype)
    mean_logit = inputs.scale * (fixed_query * mean_key.to(inputs.stats_dtype)).sum(-1)
    entropy = log_sum_exp.detach() - mean_logit
    # Rounding may leave it just below zero; the gradient stays as it is.
    entropy = entropy + (entropy.clamp(min=0) - entropy).detach()
    if inputs.needs_gradient and differentiate_log_sum_exp:
        # The gradient of log_sum_exp is that of the mean logit with p held constant.
        mean_key, _ = _run_kernel(inputs, dtype, query.detach(), key.detach(), key)
        product = query.to(inputs.stats_dtype) * mean_key.to(inputs.stats_dtype)
        mean_logit = inputs.scale * product.sum(-1)
        log_sum_exp = log_sum_exp.detach() + (mean_logit - mean_logit.detach())
    if inputs.mask is not None:
        entropy = torch.where(count > 0, entropy, 0.0)
        log_sum_exp = torch.where(count > 0, log_sum_exp, -torch.inf)
    return entropy, log_sum_exp


def _sharpened_output(inputs: Inputs, factor: Tensor, count: Tensor) -> Tensor:
    """Return the output of the sharpened rows, in the caller's shape and type."""
    assert inputs.value is not None
    query = inputs.query.to(inputs.stats_dtype) * factor[..., None]
    dtype = _output_dtype(inputs)
    output, log_sum_exp = _run_kernel(inputs, dtype, query, inputs.key, inputs.value)
    if inputs.sinks is not None:
        sinks = inputs.sinks.to(inputs.stats_dtype)[None, :, :, None]
        share = torch.sigmoid(log_sum_exp - sinks)
        if inputs.mask is not None:
            share = torch.where(count > 0, share, 0.0)
        output = output * share[..., None].to(output.dtype)
    return inputs.restore_shape(output).to(inputs.query.dtype)
