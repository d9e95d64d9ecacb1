"""Attention over keys that are split across devices, for use inside `jax.shard_map`.

Every device has the same queries and its own part of the keys and values. The statistics of a row
are merged first, since its inverse temperature depends on all its keys. Then each device weighs its
own values, and the sums are added. Devices exchange a few numbers and one output per row, no keys.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from sharpmax.jax.api import merge_head_groups
from sharpmax.jax.blocks import compute_logits, map_blocks, visible_keys
from sharpmax.jax.problem import Inputs, Settings, make_problem
from sharpmax.jax.stats import AttentionOutput, AttentionStats
from sharpmax.ops import SoftmaxState
from sharpmax.ops._rows import NOTHING, prepare
from sharpmax.ops.state import state_of
from sharpmax.policies import PAPER, Policy, inverse_temperatures

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def sharded_attention(
    query: Float[ArrayLike, "*batch query heads dim"],
    key: Float[ArrayLike, "*batch key kv_heads dim"],
    value: Float[ArrayLike, "*batch key kv_heads value_dim"],
    bias: Float[ArrayLike, "..."] | None = None,
    mask: Bool[ArrayLike, "..."] | None = None,
    *,
    axis_name: str,
    scale: float | None = None,
    is_causal: bool = False,
    policy: Policy = PAPER,
) -> AttentionOutput:
    """Compute `attention` over the keys of all devices, each of which holds a part of them.

    The parts follow each other in the order of the mesh axis. Every device gets the same answer,
    which is that of one device with all the keys. Call it inside `jax.shard_map`.

    Args:
        query: queries, [batch, query, heads, dim], or without the batch axis; the same everywhere.
        key: this device's keys, [batch, key, kv_heads, dim].
        value: this device's values, [batch, key, kv_heads, value_dim].
        bias: added to the logits of this device's keys; each axis fits or has length 1.
        mask: True where one of this device's keys may be seen; each axis fits or has length 1.
        axis_name: the mesh axis along which the keys are split.
        scale: factor on the product of query and key, by default 1/sqrt(dim).
        is_causal: whether query t sees the keys up to t of the whole sequence only.
        policy: function of (entropy, number of keys) that returns the inverse temperature.

    Returns:
        The output and the statistics of each row over the keys of all devices.

    Raises:
        TypeError: if an array has the wrong kind of type.
        ValueError: if shapes do not fit.
    """
    inputs, settings = make_problem(
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
    local = map_blocks(inputs, functools.partial(_local_state, inputs, settings))
    state = _merge_states(SoftmaxState(*local), axis_name)
    factor = inverse_temperatures(policy, state.entropy, state.count, state.varentropy)
    stats = AttentionStats.of(state, factor)
    compute = functools.partial(_weigh_values, inputs, settings)
    weighted, mass = map_blocks(inputs, compute, factor, state.max)
    weighted, mass = jax.lax.psum((weighted, mass), axis_name)
    # The row's top item alone has mass 1; a row without keys has none.
    output = (weighted / jnp.where(mass == 0, 1.0, mass)).astype(inputs.query.dtype)
    return jax.tree.map(
        lambda array: merge_head_groups(array, jnp.ndim(query)), AttentionOutput(output, stats)
    )


def _local_state(
    inputs: Inputs, settings: Settings, positions: Array, query: Array
) -> SoftmaxState:
    """Compute the state of a block of rows over this device's keys."""
    logits = compute_logits(inputs, positions, query)
    state = state_of(prepare(logits, visible_keys(inputs, settings, positions), -1))
    return SoftmaxState(*(jnp.moveaxis(array, 3, 1) for array in state))


def _merge_states(state: SoftmaxState, axis_name: str) -> SoftmaxState:
    """Merge the states of all devices, as `SoftmaxState.merge` does, by collectives."""
    maximum = jax.lax.pmax(jax.lax.stop_gradient(state.max), axis_name)
    total, moment, squared = jax.lax.psum(state.relative_to(maximum), axis_name)
    return SoftmaxState(
        max=maximum,
        min=-jax.lax.pmax(jax.lax.stop_gradient(-state.min), axis_name),
        count=jax.lax.psum(state.count, axis_name),
        sum_exp=total,
        sum_offset_exp=moment,
        sum_squared_offset_exp=squared,
    )


def _weigh_values(
    inputs: Inputs,
    settings: Settings,
    positions: Array,
    query: Array,
    factor: Float[Array, "batch rows kv_heads group"],
    maximum: Float[Array, "batch rows kv_heads group"],
) -> tuple[Any, Any]:
    """Sum exp(factor * (e_s - maximum)) * v_s over this device's keys, and the same without v."""
    logits = compute_logits(inputs, positions, query)
    rows = prepare(logits, visible_keys(inputs, settings, positions), -1)
    exponentials = rows.exponentials(jnp.moveaxis(factor, 1, 3)[..., None])
    mass = jnp.moveaxis(rows.sum(exponentials), 3, 1)
    assert inputs.value is not None
    weighted = jnp.einsum("bkgts,bskh->btkgh", exponentials, inputs.value.astype(logits.dtype))
    local = jax.lax.stop_gradient(jnp.moveaxis(rows.maximum[..., 0], 3, 1))
    # Equal infinities have a distance of 0. An infinite distance is made finite, so that 0 times it
    # is 0.
    apart = jnp.where(local == maximum, 0.0, local - jnp.where(local == maximum, 0.0, maximum))
    share = jnp.exp(factor * jnp.maximum(apart, NOTHING))[..., None]
    return weighted * share, mass * share
