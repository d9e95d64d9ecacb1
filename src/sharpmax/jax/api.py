"""Attention for JAX that knows how dispersed it is: what users call."""

from __future__ import annotations

import functools
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.jax.blocks import causal_parts, logits_of, over_blocks, visible
from sharpmax.jax.problem import Inputs, Settings, pose
from sharpmax.jax.stats import AttentionOutput, AttentionStats
from sharpmax.ops._rows import prepare
from sharpmax.ops.state import state_of
from sharpmax.policies import PAPER, Policy, inverse_temperatures

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def dot_product_attention(
    query: Float[Array, "*batch query heads dim"],
    key: Float[Array, "*batch key kv_heads dim"],
    value: Float[Array, "*batch key kv_heads value_dim"],
    bias: Float[Array, "*batch|1 heads|1 query|1 key|1"] | None = None,
    mask: Bool[Array, "*batch|1 heads|1 query|1 key|1"] | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[Array, " batch"] | None = None,
    key_value_seq_lengths: Int[Array, " batch"] | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Literal["xla"] | None = None,
    return_residual: bool = False,
    policy: Policy = PAPER,
) -> Any:
    """Attention whose rows are sharpened by as much as their entropy asks for; in place of
    `jax.nn.dot_product_attention`, argument by argument.

        output_t = sum_s softmax_s(b_t * e_ts) v_s,    b_t = policy(H_t, n_t)
        e_ts = scale * <q_t, k_s> + bias_ts

    H_t is the entropy of softmax(e_t) and n_t the number of keys that query t can see. The bias is
    part of the logit and sharpened with it. A query that sees nothing gives zeros, where `jax.nn`
    gives the mean of the values. The residual is the log-sum-exp of the sharpened logits, by which
    the output was divided. `policy=sharpmax.Constant(1.0)` is plain attention.

    Memory grows with the number of keys times a block of rows. Works under jit, grad and vmap.
    Called outside jit, it is compiled once for each policy that is a frozen dataclass; any other
    policy is traced anew at each call.
    """
    if implementation not in (None, "xla"):
        raise NotImplementedError(
            f'implementation={implementation!r} is not supported: only "xla", which is the default'
        )
    problem = pose(
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
    )
    found = _attend(*problem, policy, "both" if return_residual else "output")
    output = _laid_out(found["output"], jnp.ndim(query))
    if not return_residual:
        return output
    residual = _laid_out(found["residual"], jnp.ndim(query))
    return output, jax.lax.stop_gradient(residual).astype(output.dtype)


def attention(
    query: Float[Array, "*batch query heads dim"],
    key: Float[Array, "*batch key kv_heads dim"],
    value: Float[Array, "*batch key kv_heads value_dim"],
    bias: Float[Array, "*batch|1 heads|1 query|1 key|1"] | None = None,
    mask: Bool[Array, "*batch|1 heads|1 query|1 key|1"] | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[Array, " batch"] | None = None,
    key_value_seq_lengths: Int[Array, " batch"] | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    policy: Policy = PAPER,
) -> AttentionOutput:
    """The same as `dot_product_attention`, with the statistics of each row beside it."""
    problem = pose(
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
    )
    found = _attend(*problem, policy, "both")
    found = jax.tree.map(lambda array: _laid_out(array, jnp.ndim(query)), found)
    return AttentionOutput(found["output"], found["stats"])


def attention_stats(
    query: Float[Array, "*batch query heads dim"],
    key: Float[Array, "*batch key kv_heads dim"],
    bias: Float[Array, "*batch|1 heads|1 query|1 key|1"] | None = None,
    mask: Bool[Array, "*batch|1 heads|1 query|1 key|1"] | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[Array, " batch"] | None = None,
    key_value_seq_lengths: Int[Array, " batch"] | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    policy: Policy = PAPER,
) -> AttentionStats:
    """How spread out each row of attention is, without its output and without the matrix."""
    problem = pose(
        query,
        key,
        None,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
    )
    found = _attend(*problem, policy, "stats")
    return jax.tree.map(lambda array: _laid_out(array, jnp.ndim(query)), found["stats"])


def _laid_out(array: Array, axes: int) -> Array:
    """[batch query kv_heads group *rest] -> [*batch query heads *rest]"""
    merged = array.reshape(*array.shape[:2], array.shape[2] * array.shape[3], *array.shape[4:])
    return merged[0] if axes == 3 else merged


def _attend(inputs: Inputs, settings: Settings, policy: Policy, want: str) -> Any:
    # A compiled program is kept for a policy that cannot change. Another one may hold a parameter,
    # or a traced value, that must be read each time.
    frozen = is_dataclass(policy) and policy.__dataclass_params__.frozen
    return (_compiled if frozen else _run)(inputs, settings, policy, want)


def _run(inputs: Inputs, settings: Settings, policy: Policy, want: str) -> dict[str, Any]:
    answers = []
    for first_row, part in causal_parts(inputs, settings):
        compute = functools.partial(_block, part, settings, policy, want)
        answers.append(over_blocks(part, compute, first_row=first_row))
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays, 1), *answers)


_compiled = jax.jit(_run, static_argnums=(1, 2, 3))


def _block(
    inputs: Inputs, settings: Settings, policy: Policy, want: str, positions: Array, query: Array
) -> dict[str, Any]:
    """Attention of a block of query rows: [batch query kv_heads group *rest]."""
    logits = logits_of(inputs, positions, query)
    rows = prepare(logits, visible(inputs, settings, positions), -1)
    state = state_of(rows)
    factor = inverse_temperatures(policy, state.entropy, state.count)
    answer: dict[str, Any] = {}
    if want != "output":
        stats = AttentionStats.of(state, factor)
        answer["stats"] = jax.tree.map(lambda array: jnp.moveaxis(array, 3, 1), stats)
    if inputs.value is not None:
        exponentials = rows.exponentials(factor[..., None])
        mass = rows.nonzero(rows.sum(exponentials))
        # Divided after the product: a pass over dim and not over keys.
        value = inputs.value.astype(logits.dtype)
        total = jnp.einsum("bkgts,bskh->btkgh", exponentials, value)
        output = total / jnp.moveaxis(mass, 3, 1)
        answer["output"] = output.astype(query.dtype)
        if want == "both":
            residual = factor * jnp.where(state.count > 0, state.max, 0.0) + jnp.log(mass[..., 0])
            residual = jnp.where(state.count > 0, residual, -jnp.inf)
            answer["residual"] = jnp.moveaxis(residual, 3, 1)
    return answer
