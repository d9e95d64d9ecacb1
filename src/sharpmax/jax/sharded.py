"""Attention over keys that are split across devices, for use inside `jax.shard_map`.

Every device has the same queries and its own part of the keys and values. A row's statistics are
merged first, since its inverse temperature depends on all its keys; then each device weighs its own
values, and the sums are added. What travels is a few numbers and one output a row, never a key.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.jax.api import _laid_out
from sharpmax.jax.blocks import logits_of, over_blocks, visible
from sharpmax.jax.problem import Inputs, Settings, pose
from sharpmax.jax.stats import AttentionOutput, AttentionStats
from sharpmax.ops import SoftmaxState
from sharpmax.ops._rows import NOTHING, prepare
from sharpmax.ops.state import state_of
from sharpmax.policies import PAPER, Policy, inverse_temperatures

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def sharded_attention(
    query: Float[Array, "*batch query heads dim"],
    key: Float[Array, "*batch key kv_heads dim"],
    value: Float[Array, "*batch key kv_heads value_dim"],
    bias: Float[Array, "*batch|1 heads|1 query|1 key|1"] | None = None,
    mask: Bool[Array, "*batch|1 heads|1 query|1 key|1"] | None = None,
    *,
    axis_name: str,
    scale: float | None = None,
    is_causal: bool = False,
    policy: Policy = PAPER,
) -> AttentionOutput:
    """`attention` over the keys of all devices along `axis_name`, given this device's part of them.

    The parts lie one after another in the order of the axis; `bias` and `mask` are those of this
    device's keys. Every device gets the same answer, that of one device with all the keys.
    """
    inputs, settings = pose(
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=None,
        key_value_seq_lengths=None,
        local_window_size=None,
    )
    first = jax.lax.axis_index(axis_name) * inputs.key.shape[1]
    inputs = inputs._replace(first_key=first.astype(jnp.int32))
    local = over_blocks(inputs, functools.partial(_state, inputs, settings))
    state = _merged(SoftmaxState(*local), axis_name)
    factor = inverse_temperatures(policy, state.entropy, state.count)
    stats = AttentionStats.of(state, factor)
    compute = functools.partial(_weighted, inputs, settings)
    weighted, mass = over_blocks(inputs, compute, factor, state.max)
    weighted, mass = jax.lax.psum((weighted, mass), axis_name)
    # The row's top item alone has mass 1; a row without keys has none.
    output = (weighted / jnp.where(mass == 0, 1.0, mass)).astype(query.dtype)
    return jax.tree.map(
        lambda array: _laid_out(array, jnp.ndim(query)), AttentionOutput(output, stats)
    )


def _state(inputs: Inputs, settings: Settings, positions: Array, query: Array) -> SoftmaxState:
    """The statistics of a block of rows over this device's keys, [batch query kv_heads group]."""
    logits = logits_of(inputs, positions, query)
    state = state_of(prepare(logits, visible(inputs, settings, positions), -1))
    return SoftmaxState(*(jnp.moveaxis(array, 3, 1) for array in state))


def _merged(state: SoftmaxState, axis_name: str) -> SoftmaxState:
    """The merge of `SoftmaxState` as collectives: the maximum of the maxima, then the sum of the
    sums relative to it.
    """
    maximum = jax.lax.pmax(jax.lax.stop_gradient(state.max), axis_name)
    total, moment = jax.lax.psum(state.relative_to(maximum), axis_name)
    return SoftmaxState(
        max=maximum,
        min=-jax.lax.pmax(jax.lax.stop_gradient(-state.min), axis_name),
        count=jax.lax.psum(state.count, axis_name),
        sum_exp=total,
        sum_offset_exp=moment,
    )


def _weighted(
    inputs: Inputs,
    settings: Settings,
    positions: Array,
    query: Array,
    factor: Float[Array, "b rows h g"],
    maximum: Float[Array, "b rows h g"],
) -> tuple[Any, Any]:
    """sum_s exp(factor * (e_s - maximum)) * v_s over this device's keys, and the same without v."""
    logits = logits_of(inputs, positions, query)
    rows = prepare(logits, visible(inputs, settings, positions), -1)
    exponentials = rows.exponentials(jnp.moveaxis(factor, 1, 3)[..., None])
    mass = jnp.moveaxis(rows.sum(exponentials), 3, 1)
    assert inputs.value is not None
    weighted = jnp.einsum("bkgts,bskh->btkgh", exponentials, inputs.value.astype(logits.dtype))
    mine = jax.lax.stop_gradient(jnp.moveaxis(rows.maximum[..., 0], 3, 1))
    # Two infinities are no distance apart; an infinite distance is made finite, so that 0 times it
    # is 0.
    apart = jnp.where(mine == maximum, 0.0, mine - jnp.where(mine == maximum, 0.0, maximum))
    share = jnp.exp(factor * jnp.maximum(apart, NOTHING))[..., None]
    return weighted * share, mass * share
