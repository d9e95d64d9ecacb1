"""Attention in JAX by blocks of query rows, one after another under `lax.map`.

    memory = one block of logits, rows * heads * keys, whatever the number of queries

A block is rematerialised on the way back (`jax.checkpoint`), so gradients need no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.jax.problem import Inputs, Settings

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

BLOCK = 1 << 21
"""Logits that a block aims at, 8 MB of float32."""

PARTS = 4
"""Into how many problems a long causal one is cut; 4 leave 5/8 of the work, 8 would leave 9/16 and
take twice as long to compile."""

FEWEST_ROWS = 16
"""Rows a block has at least: products of fewer rows are slow, and it still is rows * keys."""


def over_blocks(
    inputs: Inputs,
    compute: Callable[..., Any],
    *rows: Float[Array, "b q h g *rest"],
    first_row: int = 0,
) -> Any:
    """Run `compute(positions, query, *rows)` on blocks of query rows and join the answers, which
    are [batch query kv_heads group *rest]. `first_row` is the position of the first query.
    """
    queries = inputs.query.shape[1]
    size = block_rows(inputs)
    if queries <= size:
        return compute(first_row + jnp.arange(queries, dtype=jnp.int32), inputs.query, *rows)
    blocks = -(-queries // size)
    padding = blocks * size - queries

    def cut(array: Array) -> Array:
        """[batch query ...] -> [blocks batch rows ...], the last one filled up."""
        widths = [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2)
        padded = jnp.pad(array, widths)
        return jnp.moveaxis(padded.reshape(array.shape[0], blocks, size, *array.shape[2:]), 1, 0)

    def joined(array: Array) -> Array:
        moved = jnp.moveaxis(array, 0, 1)
        return moved.reshape(moved.shape[0], blocks * size, *moved.shape[3:])[:, :queries]

    positions = first_row + jnp.arange(blocks * size, dtype=jnp.int32).reshape(blocks, size)
    step = jax.checkpoint(lambda block: compute(*block))
    answers = jax.lax.map(step, (positions, cut(inputs.query), *map(cut, rows)))
    return jax.tree.map(joined, answers)


def causal_parts(inputs: Inputs, settings: Settings) -> Iterator[tuple[int, Inputs]]:
    """A causal problem as a few that need not look at all keys, with the position of each one's
    first query. Shapes are fixed when a program is compiled, so a block cannot stop at its own
    edge; PARTS of different lengths save most of half the work.
    """
    queries, keys = inputs.query.shape[1], inputs.key.shape[1]
    parts = PARTS if settings.causal and queries >= PARTS * block_rows(inputs) else 1
    step = -(-queries // parts)
    for start in range(0, max(1, queries), max(1, step)):
        stop = min(start + step, queries)
        seen = min(stop, keys) if settings.causal else keys

        def first_keys(array: Array | None, axis: int, seen: int = seen) -> Array | None:
            if array is None or array.shape[axis] == 1:
                return array
            return jax.lax.slice_in_dim(array, 0, seen, axis=axis)

        yield (
            start,
            inputs._replace(
                query=inputs.query[:, start:stop],
                key=inputs.key[:, :seen],
                value=None if inputs.value is None else inputs.value[:, :seen],
                bias=first_keys(inputs.bias, 4),
                mask=first_keys(inputs.mask, 4),
            ),
        )


def block_rows(inputs: Inputs) -> int:
    batch, queries, kv_heads, group = inputs.query.shape[:4]
    a_row = max(1, batch * kv_heads * group * inputs.key.shape[1])
    return min(max(FEWEST_ROWS, BLOCK // a_row), max(1, queries))


def logits_of(
    inputs: Inputs, positions: Int[Array, " rows"], query: Float[Array, "b rows h g d"]
) -> Float[Array, "b h g rows key"]:
    """scale * <q, k> + bias, in float32 or better."""
    wide = inputs.scale.dtype
    logits = jnp.einsum("btkgh,bskh->bkgts", query, inputs.key, preferred_element_type=wide)
    logits = logits * inputs.scale
    if inputs.bias is not None:
        logits = logits + _rows_of(inputs.bias, positions).astype(wide)
    return logits


def visible(
    inputs: Inputs, settings: Settings, positions: Int[Array, " rows"]
) -> Bool[Array, "b|1 h|1 g|1 rows|1 key"] | None:
    """Which keys the rows of a block can see; None if all of them. A bias of -inf hides a key, and
    so does the lowest number of its type.
    """
    row = positions[:, None]
    column = inputs.first_key + jnp.arange(inputs.key.shape[1], dtype=jnp.int32)
    parts = []
    if inputs.mask is not None:
        parts.append(_rows_of(inputs.mask, positions))
    if inputs.bias is not None:
        lowest = float(jnp.finfo(inputs.bias.dtype).min)  # type: ignore[no-untyped-call]
        parts.append(_rows_of(inputs.bias, positions) > lowest)
    if settings.causal:
        parts.append(column <= row)
    if settings.window is not None:
        left, right = settings.window
        parts.append((row <= column + left) & (row >= column - right))
    if inputs.query_lengths is not None:
        parts.append(row < inputs.query_lengths[:, None, None, None, None])
    if inputs.key_lengths is not None:
        parts.append(column < inputs.key_lengths[:, None, None, None, None])
    if not parts:
        return None
    seen = parts[0]
    for part in parts[1:]:
        seen = seen & part
    return seen


def _rows_of(array: Array, positions: Int[Array, " rows"]) -> Array:
    """The rows of a mask that a block needs; a filled-up block repeats the last one."""
    if array.shape[3] == 1:
        return array
    return jnp.take(array, positions, axis=3, mode="clip")
