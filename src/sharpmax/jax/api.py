"""Attention for JAX with adaptive temperature: the functions that users call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from sharpmax.jax.blocks import causal_parts, compute_logits, map_blocks, visible_keys
from sharpmax.jax.problem import Inputs, Settings, make_problem
from sharpmax.jax.stats import AttentionOutput, AttentionStats
from sharpmax.ops._rows import prepare
from sharpmax.ops.inverse_temperature import solver
from sharpmax.ops.state import state_of
from sharpmax.policies import PAPER, Policy, inverse_temperatures, traits

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def dot_product_attention(
    query: Float[ArrayLike, "*batch query heads dim"],
    key: Float[ArrayLike, "*batch key kv_heads dim"],
    value: Float[ArrayLike, "*batch key kv_heads value_dim"],
    bias: Float[ArrayLike, "..."] | None = None,
    mask: Bool[ArrayLike, "..."] | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[ArrayLike, " batch"] | None = None,
    key_value_seq_lengths: Int[ArrayLike, " batch"] | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Literal["xla"] | None = None,
    return_residual: bool = False,
    policy: Policy = PAPER,
) -> Any:
    """Compute attention, sharpening each row by a policy; replaces `jax.nn.dot_product_attention`.

        output_t = sum_s softmax_s(b_t * e_ts) v_s,    b_t = policy(H_t, n_t)
        e_ts = scale * <q_t, k_s> + bias_ts

    H_t is the entropy of softmax(e_t) and n_t the number of keys that query t can see. With
    `policy=sharpmax.Constant(1.0)` this is plain attention. A query that sees no key gives zeros,
    where `jax.nn` gives the mean of the values.

    Memory grows with the number of keys times a block of rows. The function works under jit, grad
    and vmap. Outside jit it is compiled once per policy whose trait `learned` is False, as for all
    policies of sharpmax; any other policy is traced again at each call.

    Args:
        query: queries, [batch, query, heads, dim], or without the batch axis.
        key: keys, [batch, key, kv_heads, dim]; the number of query heads is a multiple of theirs.
        value: values, [batch, key, kv_heads, value_dim].
        bias: added to the logits and sharpened with them; each axis fits or has length 1. -1e38 or
            less, or the lowest number of its type, hides a key.
        mask: True where a key may be seen; each axis fits or has length 1.
        scale: factor on the product of query and key, by default 1/sqrt(dim).
        is_causal: whether query t sees the keys up to t only.
        query_seq_lengths: number of queries of each sequence; those beyond see nothing.
        key_value_seq_lengths: number of keys of each sequence; those beyond are hidden.
        local_window_size: how many keys before and after its own position a query sees, a number or
            (left, right).
        implementation: "xla" or None, which is the same.
        return_residual: whether to return the residual too.
        policy: function of (entropy, number of keys) that returns the inverse temperature.

    Returns:
        The output [batch, query, heads, value_dim] in the type of `query`. With `return_residual`
        also the log-sum-exp of the sharpened logits [batch, query, heads], without a gradient.

    Raises:
        NotImplementedError: if another implementation is asked for.
        TypeError: if an array has the wrong kind of type.
        ValueError: if shapes or options do not fit.

    Examples:
        >>> output = dot_product_attention(query, key, value, is_causal=True)
    """
    if implementation not in (None, "xla"):
        raise NotImplementedError(
            f'implementation={implementation!r} is not supported: only "xla", which is the default'
        )
    problem = make_problem(
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
    answer = _attend(*problem, policy, "both" if return_residual else "output")
    output = merge_head_groups(answer["output"], jnp.ndim(query))
    if not return_residual:
        return output
    residual = merge_head_groups(answer["residual"], jnp.ndim(query))
    return output, jax.lax.stop_gradient(residual).astype(output.dtype)


def attention(
    query: Float[ArrayLike, "*batch query heads dim"],
    key: Float[ArrayLike, "*batch key kv_heads dim"],
    value: Float[ArrayLike, "*batch key kv_heads value_dim"],
    bias: Float[ArrayLike, "..."] | None = None,
    mask: Bool[ArrayLike, "..."] | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[ArrayLike, " batch"] | None = None,
    key_value_seq_lengths: Int[ArrayLike, " batch"] | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    policy: Policy = PAPER,
) -> AttentionOutput:
    """Compute attention as `dot_product_attention` does, and return the statistics of each row too.

    Args:
        query: queries, [batch, query, heads, dim], or without the batch axis.
        key: keys, [batch, key, kv_heads, dim]; the number of query heads is a multiple of theirs.
        value: values, [batch, key, kv_heads, value_dim].
        bias: added to the logits and sharpened with them; each axis fits or has length 1. -1e38 or
            less, or the lowest number of its type, hides a key.
        mask: True where a key may be seen; each axis fits or has length 1.
        scale: factor on the product of query and key, by default 1/sqrt(dim).
        is_causal: whether query t sees the keys up to t only.
        query_seq_lengths: number of queries of each sequence; those beyond see nothing.
        key_value_seq_lengths: number of keys of each sequence; those beyond are hidden.
        local_window_size: how many keys before and after its own position a query sees, a number or
            (left, right).
        policy: function of (entropy, number of keys) that returns the inverse temperature.

    Returns:
        The output and the statistics of each row before it is sharpened.

    Raises:
        TypeError: if an array has the wrong kind of type.
        ValueError: if shapes or options do not fit.

    Examples:
        >>> output, stats = attention(query, key, value, is_causal=True)
        >>> stats.effective_items  # [batch, query, heads]
    """
    problem = make_problem(
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
    answer = _attend(*problem, policy, "both")
    answer = jax.tree.map(lambda array: merge_head_groups(array, jnp.ndim(query)), answer)
    return AttentionOutput(answer["output"], answer["stats"])


def attention_stats(
    query: Float[ArrayLike, "*batch query heads dim"],
    key: Float[ArrayLike, "*batch key kv_heads dim"],
    bias: Float[ArrayLike, "..."] | None = None,
    mask: Bool[ArrayLike, "..."] | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[ArrayLike, " batch"] | None = None,
    key_value_seq_lengths: Int[ArrayLike, " batch"] | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    policy: Policy = PAPER,
) -> AttentionStats:
    """Measure how spread out each row of attention is, without computing the output.

    Args:
        query: queries, [batch, query, heads, dim], or without the batch axis.
        key: keys, [batch, key, kv_heads, dim]; the number of query heads is a multiple of theirs.
        bias: added to the logits and sharpened with them; each axis fits or has length 1. -1e38 or
            less, or the lowest number of its type, hides a key.
        mask: True where a key may be seen; each axis fits or has length 1.
        scale: factor on the product of query and key, by default 1/sqrt(dim).
        is_causal: whether query t sees the keys up to t only.
        query_seq_lengths: number of queries of each sequence; those beyond see nothing.
        key_value_seq_lengths: number of keys of each sequence; those beyond are hidden.
        local_window_size: how many keys before and after its own position a query sees, a number or
            (left, right).
        policy: function of (entropy, number of keys) that returns the inverse temperature.

    Returns:
        The statistics of each row before it is sharpened.

    Raises:
        TypeError: if an array has the wrong kind of type.
        ValueError: if shapes or options do not fit.
    """
    problem = make_problem(
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
    stats = _attend(*problem, policy, "stats")["stats"]
    return jax.tree.map(lambda array: merge_head_groups(array, jnp.ndim(query)), stats)


def merge_head_groups(array: Array, axes: int) -> Array:
    """Reshape [batch query kv_heads group *rest] to the user's [*batch query heads *rest]."""
    merged = array.reshape(*array.shape[:2], array.shape[2] * array.shape[3], *array.shape[4:])
    return merged[0] if axes == 3 else merged


def _attend(inputs: Inputs, settings: Settings, policy: Policy, want: str) -> Any:
    # A compiled program is kept for a policy that cannot change. Another one may hold a parameter,
    # or a traced value, that must be read at each call.
    run = _run if traits(policy).learned else _compiled
    return run(inputs, settings, policy, want)


def _run(inputs: Inputs, settings: Settings, policy: Policy, want: str) -> dict[str, Any]:
    """Compute what is wanted ("output", "stats" or "both") part by part and block by block."""
    answers = []
    for first_row, part in causal_parts(inputs, settings):
        compute = functools.partial(_block, part, settings, policy, want)
        answers.append(map_blocks(part, compute, first_row=first_row))
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays, 1), *answers)


_compiled = jax.jit(_run, static_argnums=(1, 2, 3))


def _block(
    inputs: Inputs, settings: Settings, policy: Policy, want: str, positions: Array, query: Array
) -> dict[str, Any]:
    """Attend with a block of query rows; all answers are [batch query kv_heads group *rest]."""
    logits = compute_logits(inputs, positions, query)
    rows = prepare(logits, visible_keys(inputs, settings, positions), -1)
    state = state_of(rows)
    known = state.entropy, state.count, state.varentropy
    factor = inverse_temperatures(policy, *known, solver(rows))
    answer: dict[str, Any] = {}
    if want != "output":
        stats = AttentionStats.of(state, factor)
        answer["stats"] = jax.tree.map(lambda array: jnp.moveaxis(array, 3, 1), stats)
    if inputs.value is not None:
        exponentials = rows.exponentials(factor[..., None])
        mass = rows.nonzero(rows.sum(exponentials))
        # Divided after the product, which is a pass over dim instead of keys.
        value = inputs.value.astype(logits.dtype)
        total = jnp.einsum("bkgts,bskh->btkgh", exponentials, value)
        # A row without keys is zero, whatever the hidden values are.
        seen = jnp.moveaxis(state.count > 0, 3, 1)[..., None]
        output = jnp.where(seen, total / jnp.moveaxis(mass, 3, 1), 0.0)
        answer["output"] = output.astype(query.dtype)
        if want == "both":
            residual = factor * jnp.where(state.count > 0, state.max, 0.0) + jnp.log(mass[..., 0])
            residual = jnp.where(state.count > 0, residual, -jnp.inf)
            answer["residual"] = jnp.moveaxis(residual, 3, 1)
    return answer
