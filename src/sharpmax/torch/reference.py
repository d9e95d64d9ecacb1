"""Attention written to be read: the specification of what every other implementation computes.

Holds the whole matrix of logits, heads * queries * keys. Any normaliser, any device, any type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.ops import SoftmaxState, softmax
from sharpmax.policies import Policy, inverse_temperatures
from sharpmax.torch.problem import Problem
from sharpmax.torch.stats import AttentionStats

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Normaliser = Callable[..., Tensor]
"""normaliser(logits, *, where=None, axis=-1) -> weights"""


def attend(
    problem: Problem, policy: Policy, normaliser: Normaliser | None = None
) -> tuple[Tensor | None, AttentionStats]:
    """Output and statistics:

    output_i = sum_j softmax_j(b_i * logit_ij) * value_j,   b_i = policy(entropy_i, count_i)
    """
    logits, where = logits_of(problem), visible(problem)
    state = SoftmaxState.of(logits, where)
    # Under another normaliser nothing is sharpened.
    factor = (
        inverse_temperatures(policy, state.entropy, state.count)
        if normaliser is None
        else torch.ones_like(state.entropy)
    )
    stats = AttentionStats.of(problem, state, factor)
    if problem.value is None:
        return None, stats
    # A hidden logit may be -inf, which times a gradient of zero would make the factor's NaN.
    sharpened = torch.where(where, logits, 0.0) * factor[..., None]
    if normaliser is not None:
        weights = normaliser(logits, where=where, axis=-1).to(problem.wide)
    elif problem.sinks is None:
        weights = softmax(sharpened, where=where)
    else:
        weights = with_sinks(sharpened, where, problem.sinks)
    weights = torch.dropout(weights, problem.dropout, True)
    output = torch.einsum("bhgqk,bhkd->bhgqd", weights, problem.value.to(problem.wide))
    return problem.restore(output).to(problem.query.dtype), stats


def logits_of(problem: Problem) -> Float[Tensor, "batch kv_heads group query key"]:
    query, key = problem.query.to(problem.wide), problem.key.to(problem.wide)
    logits = torch.einsum("bhgqd,bhkd->bhgqk", query, key) * problem.scale
    if problem.softcap is not None:
        logits = problem.softcap * torch.tanh(logits / problem.softcap)
    if problem.bias is not None:
        logits = logits + problem.bias.to(problem.wide)
    return logits


def visible(problem: Problem) -> Bool[Tensor, "batch kv_heads group query key"]:
    """Which keys each query can see. A bias of -inf hides a key, and so does the lowest number of
    its type, which some libraries write instead.
    """
    shape = (*problem.query.shape[:4], problem.key.shape[2])
    seen = torch.ones(shape, dtype=torch.bool, device=problem.query.device)
    if problem.causal:
        seen = seen.tril(-problem.first_key)
    if problem.window is not None:
        reach = problem.window - 1
        seen = seen.tril(reach - problem.first_key).triu(-reach - problem.first_key)
    if problem.mask is not None:
        seen = seen & problem.mask
    if problem.bias is not None:
        seen = seen & (problem.bias > torch.finfo(problem.bias.dtype).min)
    return seen


def with_sinks(
    sharpened: Float[Tensor, "batch kv_heads group query key"],
    where: Bool[Tensor, "batch kv_heads group query key"],
    sinks: Float[Tensor, "kv_heads group"],
) -> Float[Tensor, "batch kv_heads group query key"]:
    """Weights that compete with one more item, of logit `sinks`, whose share goes nowhere. The sink
    is not sharpened.
    """
    rows = (*sharpened.shape[:4], 1)
    sink = sinks.to(sharpened.dtype)[None, :, :, None, None].expand(rows)
    seen = torch.ones(rows, dtype=torch.bool, device=where.device)
    return softmax(torch.cat([sharpened, sink], -1), where=torch.cat([where, seen], -1))[..., :-1]
