"""Adaptive attention by two calls of a fused kernel that returns the log-sum-exp.

With V = K, the output of attention is the mean key, and so the mean logit comes for free:

    entropy_i = log_sum_exp_i - scale * <q_i, attention(Q, K, V=K)_i>

and a temperature of a row is a factor on its query:

    softmax(b_i * scale * <q_i, K>) V = attention(b_i * q_i, K, V)

Both need a logit that is a plain scaled product, so softcap and additive masks are refused. A
policy that does not look at the entropy needs one call only. A single query per head (decoding)
reads keys and values once, as one row of plain attention.

Half precision: a mean key rounded to bfloat16 puts up to 0.03 nats of error on an entropy, so
statistics that are returned are always found in float32. On a CPU all of it is: there the operator
is no faster in half precision (measured: bfloat16 1.0, float16 2.0 times the time of float32).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.policies import Policy, inverse_temperatures, needs_entropy
from sharpmax.torch import blockwise, kernels, streaming
from sharpmax.torch.problem import Problem
from sharpmax.torch.stats import AttentionStats

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def refusal(problem: Problem) -> str | None:
    """What of the problem this implementation cannot do; None if it can do all of it."""
    if problem.softcap is not None:
        return f"softcap={problem.softcap}"
    if problem.bias is not None:
        return f"an additive attn_mask ({problem.bias.dtype}; a boolean one is served)"
    if problem.window is not None:
        return f"window={problem.window}"
    if problem.dropout:
        return f"dropout_p={problem.dropout}"
    if problem.sinks is not None and problem.differentiates:
        return "gradients with sinks"
    if problem.value is not None and problem.value.shape[-1] != problem.query.shape[-1]:
        sizes = f"{problem.query.shape[-1]} and {problem.value.shape[-1]}"
        return f"keys and values of different sizes ({sizes})"
    if 0 in problem.query.shape or 0 in problem.key.shape:
        return f"an empty query or key, {tuple(problem.query.shape)}, {tuple(problem.key.shape)}"
    for dtype in dict.fromkeys((problem.wide, _fast_type(problem))):
        found = kernels.find(problem.query, dtype, problem.mask)
        if isinstance(found, str):
            return f"these tensors ({found})"
    return None


def attend(
    problem: Problem, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None]:
    """Output if there are values, statistics if asked; `refusal` must have been None."""
    if problem.query.shape[3] == 1 and problem.value is not None:
        return streaming.attend(problem, policy, stats)
    count = visible_keys(problem)
    if stats or needs_entropy(policy):
        dtype = problem.wide if stats else _fast_type(problem)
        entropy, total = _entropy(problem, count, dtype, gradient_of_total=stats)
    else:
        entropy = torch.zeros(count.shape, dtype=problem.wide, device=count.device)
    factor = inverse_temperatures(policy, entropy, count)
    output = None if problem.value is None else _sharpened(problem, factor, count)
    if not stats:
        return output, None
    return output, AttentionStats(
        entropy=problem.restore(entropy),
        log_sum_exp=problem.restore(total),
        count=problem.restore(count),
        inverse_temperature=problem.restore(factor),
        extremes=functools.partial(blockwise.extremes, problem),
    )


def visible_keys(problem: Problem) -> Int[Tensor, "batch kv_heads group query"]:
    """How many keys each query can see."""
    queries, keys = problem.query.shape[3], problem.key.shape[2]
    device = problem.query.device
    if problem.mask is None:
        reach = torch.arange(1, queries + 1, device=device).clamp(max=keys)
        count = reach if problem.causal else torch.full((queries,), keys, device=device)
    else:
        mask = problem.mask.expand(*problem.mask.shape[:4], keys)
        if not problem.causal:
            count = mask.sum(-1)
        elif mask.shape[3] == 1:
            last = torch.arange(queries, device=device).clamp(max=keys - 1)
            count = mask[:, :, :, 0].cumsum(-1)[..., last]
        else:
            parts = kernels.row_parts(mask, queries)
            count = torch.cat([_seen(mask, part).sum(-1) for part in parts], -1)
    return count.to(torch.int32).expand(problem.query.shape[:4])


def _seen(mask: Tensor, rows: slice) -> Tensor:
    """Rows of a mask, causal as well."""
    return mask[..., rows, :] & kernels.earlier(rows, mask.shape[-1], mask.device)


def _fast_type(problem: Problem) -> torch.dtype:
    return problem.wide if problem.query.device.type == "cpu" else problem.query.dtype


def _call(
    problem: Problem, dtype: torch.dtype, *tensors: Tensor
) -> tuple[Float[Tensor, "b h g q d"], Float[Tensor, "b h g q"]]:
    heads = problem.query.shape[1:3]
    mask = problem.mask
    if mask is not None:
        mask = mask.expand(*mask.shape[:4], problem.key.shape[2]).flatten(1, 2)
    kernel = kernels.find(problem.query, dtype, problem.mask)
    assert isinstance(kernel, kernels.Kernel)
    query, key, value = (tensor.to(dtype) for tensor in tensors)
    output, total = kernels.run(
        kernel, query.flatten(1, 2), key, value, mask, problem.causal, problem.scale
    )
    return output.unflatten(1, heads), total.unflatten(1, heads)


def _entropy(
    problem: Problem, count: Tensor, dtype: torch.dtype, *, gradient_of_total: bool
) -> tuple[Tensor, Tensor]:
    """Entropy and log-sum-exp of every row, with exact gradients.

    The kernel's log-sum-exp has no gradient. The entropy's needs none of it: with p fixed, the
    gradients of log_sum_exp and of the mean logit cancel, and what is left runs through p alone,
    which is the gradient of the output with the outer query and V = K held constant.
    """
    query, key = problem.query, problem.key
    mean_key, total = _call(problem, dtype, query, key, key.detach())
    wide = query.detach().to(problem.wide)
    entropy = total.detach() - problem.scale * (wide * mean_key.to(problem.wide)).sum(-1)
    # Rounding may leave it just below zero; the gradient is left as it is.
    entropy = entropy + (entropy.clamp(min=0) - entropy).detach()
    if problem.differentiates and gradient_of_total:
        # And the gradient of log_sum_exp is that of the mean logit with p held constant.
        held, _ = _call(problem, dtype, query.detach(), key.detach(), key)
        mean_logit = problem.scale * (query.to(problem.wide) * held.to(problem.wide)).sum(-1)
        total = total.detach() + (mean_logit - mean_logit.detach())
    if problem.mask is not None:
        entropy = torch.where(count > 0, entropy, 0.0)
        total = torch.where(count > 0, total, -torch.inf)
    return entropy, total


def _sharpened(problem: Problem, factor: Tensor, count: Tensor) -> Tensor:
    assert problem.value is not None
    query = problem.query.to(problem.wide) * factor[..., None]
    output, total = _call(problem, _fast_type(problem), query, problem.key, problem.value)
    if problem.sinks is not None:
        sinks = problem.sinks.to(problem.wide)[None, :, :, None]
        share = torch.sigmoid(total - sinks)
        if problem.mask is not None:
            share = torch.where(count > 0, share, 0.0)
        output = output * share[..., None].to(output.dtype)
    return problem.restore(output).to(problem.query.dtype)
