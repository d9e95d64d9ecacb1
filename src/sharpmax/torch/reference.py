"""Attention written to be read: the specification of every other implementation.

It holds the whole matrix of logits, heads * queries * keys, and takes any normaliser, device and
type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.ops import SoftmaxState, softmax
from sharpmax.ops._rows import prepare
from sharpmax.ops.inverse_temperature import solver
from sharpmax.policies import Policy, inverse_temperatures, needs_rows
from sharpmax.torch import products
from sharpmax.torch.interface import AttentionStats, Inputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Normaliser = Callable[..., Tensor]
"""normaliser(logits, *, where=None, axis=-1) -> weights"""


def attend(
    inputs: Inputs, policy: Policy, normaliser: Normaliser | None = None
) -> tuple[Tensor | None, AttentionStats]:
    """Return the output (None without values) and the statistics.

    output_i = sum_j softmax_j(b_i * logit_ij) * value_j,   b_i = policy(entropy_i, count_i)
    """
    logits, where = compute_logits(inputs), visible_keys(inputs)
    state = SoftmaxState.of(logits, where)
    # Nothing is sharpened under another normaliser.
    factor = (
        _ask(policy, state, logits, where) if normaliser is None else torch.ones_like(state.entropy)
    )
    stats = AttentionStats.from_state(inputs, state, factor)
    if inputs.value is None:
        return None, stats
    if normaliser is None:
        weights = compute_weights(inputs, logits, where, factor)
    else:
        weights = normaliser(logits, where=where, axis=-1).to(inputs.stats_dtype)
    weights = torch.dropout(weights, inputs.dropout, True)
    value = inputs.value.to(inputs.stats_dtype).flatten(0, 1)
    rows = products.weigh(weights.flatten(0, 1).flatten(1, 2), value)
    output = rows.view(*weights.shape[:4], value.shape[2])
    return inputs.restore_shape(output).to(inputs.query.dtype), stats


def _ask(policy: Policy, state: SoftmaxState, logits: Tensor, where: Tensor) -> Tensor:
    """Return the inverse temperature of each row."""
    known = state.entropy, state.count, state.varentropy
    solve = solver(prepare(logits, where, -1)) if needs_rows(policy) else None
    factor: Tensor = inverse_temperatures(policy, *known, solve)
    return factor


def compute_logits(inputs: Inputs) -> Float[Tensor, "batch kv_heads group query key"]:
    """Return scaled products, with softcap and bias; hidden keys are not marked."""
    query, key = inputs.query.to(inputs.stats_dtype), inputs.key.to(inputs.stats_dtype)
    rows = query.flatten(0, 1).flatten(1, 2)
    logits = products.multiply(rows, key.flatten(0, 1)) * inputs.scale
    logits = logits.view(*query.shape[:4], key.shape[2])
    if inputs.softcap is not None:
        logits = inputs.softcap * torch.tanh(logits / inputs.softcap)
    if inputs.bias is not None:
        logits = logits + inputs.bias.to(inputs.stats_dtype)
    return logits


def visible_keys(inputs: Inputs) -> Bool[Tensor, "batch kv_heads group query key"]:
    """Return which keys each query can see.

    A bias of -1e38 or less hides a key, and so does the lowest number of its type: some libraries
    write it instead of -inf.
    """
    shape = (*inputs.query.shape[:4], inputs.key.shape[2])
    visible = torch.ones(shape, dtype=torch.bool, device=inputs.query.device)
    if inputs.causal:
        visible = visible.tril(-inputs.first_key)
    if inputs.window is not None:
        reach = inputs.window - 1
        visible = visible.tril(reach - inputs.first_key).triu(-reach - inputs.first_key)
    if inputs.mask is not None:
        visible = visible & inputs.mask
    if inputs.bias is not None:
        # Not `>`, which would hide a NaN: it is visible and spoils its row.
        visible = visible & ~(inputs.bias <= inputs.hiding_bias)
    return visible


def compute_weights(
    inputs: Inputs,
    logits: Float[Tensor, "batch kv_heads group query key"],
    where: Bool[Tensor, "batch kv_heads group query key"],
    factor: Float[Tensor, "batch kv_heads group query"],
) -> Float[Tensor, "batch kv_heads group query key"]:
    """Return softmax(factor * logits) over visible keys, less what the sinks take."""
    # A hidden logit may be -inf; times a gradient of zero it would make the factor's gradient NaN.
    sharpened = torch.where(where, logits, 0.0) * factor[..., None]
    if inputs.sinks is None:
        return softmax(sharpened, where=where)
    return _softmax_with_sinks(sharpened, where, inputs.sinks)


def _softmax_with_sinks(
    sharpened: Float[Tensor, "batch kv_heads group query key"],
    where: Bool[Tensor, "batch kv_heads group query key"],
    sinks: Float[Tensor, "kv_heads group"],
) -> Float[Tensor, "batch kv_heads group query key"]:
    """Return weights that compete with one more item per head, which is not sharpened."""
    column = (*sharpened.shape[:4], 1)
    sink = sinks.to(sharpened.dtype)[None, :, :, None, None].expand(column)
    visible = torch.ones(column, dtype=torch.bool, device=where.device)
    weights = softmax(torch.cat([sharpened, sink], -1), where=torch.cat([where, visible], -1))
    return weights[..., :-1]
