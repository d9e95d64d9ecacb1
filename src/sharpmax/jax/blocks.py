"""Blocks of query rows, computed one after another by `lax.map`.

Memory is one block of logits, rows * heads * keys, whatever the number of queries. Gradients need
no more, since `jax.checkpoint` computes each block again in the backward pass.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax import _array
from sharpmax.jax.problem import Inputs, Settings

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

BLOCK = 1 << 21
"""Number of logits in a block, 8 MB of float32."""

PARTS = 4
"""Number of parts that a long causal problem is split into. 4 leave 5/8 of the work; 8 would leave
9/16 and take twice as long to compile."""

FEWEST_ROWS = 16
"""Minimum number of rows in a block; products of fewer rows are slow."""


def map_blocks(
    inputs: Inputs,
    compute: Callable[..., Any],
    *rows: Array,
    first_row: int = 0,
) -> Any:
    """Run `compute(positions, query, *rows)` on blocks of query rows and join the answers.

    The query, `rows` and the answers are [batch query kv_heads group *rest]. `first_row` is the
    position of the first query.
    """
    queries = inputs.query.shape[1]
    size = block_rows(inputs)
    if queries <= size:
        return compute(first_row + jnp.arange(queries, dtype=jnp.int32), inputs.query, *rows)
    blocks = -(-queries // size)
    padding = blocks * size - queries

    def split(array: Array) -> Array:
        """Split [batch query ...] into [blocks batch rows ...], padding the last block."""
        widths = [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2)
        padded = jnp.pad(array, widths)
        return jnp.moveaxis(padded.reshape(array.shape[0], blocks, size, *array.shape[2:]), 1, 0)

    def join(array: Array) -> Array:
        moved = jnp.moveaxis(array, 0, 1)
        return moved.reshape(moved.shape[0], blocks * size, *moved.shape[3:])[:, :queries]

    positions = first_row + jnp.arange(blocks * size, dtype=jnp.int32).reshape(blocks, size)
    step = jax.checkpoint(lambda block: compute(*block))
    answers = jax.lax.map(step, (positions, split(inputs.query), *map(split, rows)))
    return jax.tree.map(join, answers)


def causal_parts(inputs: Inputs, settings: Settings) -> Iterator[tuple[int, Inputs]]:
    """Split a long causal problem by queries into parts that leave out the keys none of them sees.

    Shapes are fixed when a program is compiled, so a block cannot stop at its own last key. A few
    parts with different numbers of keys save most of the unneeded half of the work.

    Yields:
        The position of the part's first query, and the part.
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
    """Return the number of query rows per block."""
    batch, queries, kv_heads, group = inputs.query.shape[:4]
    logits_per_row = max(1, batch * kv_heads * group * inputs.key.shape[1])
    return min(max(FEWEST_ROWS, BLOCK // logits_per_row), max(1, queries))


def compute_logits(
    inputs: Inputs,
    positions: Int[Array, " rows"],
    query: Float[Array, "batch rows kv_heads group dim"],
) -> Float[Array, "batch kv_heads group rows key"]:
    """Compute scale * <q, k> + bias for a block of query rows, in float32 or better."""
    wide = inputs.scale.dtype
    logits = jnp.einsum("btkgh,bskh->bkgts", query, inputs.key, preferred_element_type=wide)
    logits = logits * inputs.scale
    if inputs.bias is not None:
        logits = logits + _take_rows(inputs.bias, positions).astype(wide)
    return logits


def visible_keys(
    inputs: Inputs, settings: Settings, positions: Int[Array, " rows"]
) -> Bool[Array, "..."] | None:
    """Return which keys the rows of a block can see, or None if they see all of them.

    The mask broadcasts to [batch kv_heads group rows key]. A bias of -1e38 or less, or of the
    lowest number of its type, hides a key.
    """
    row = positions[:, None]
    column = inputs.first_key + jnp.arange(inputs.key.shape[1], dtype=jnp.int32)
    masks = []
    if inputs.mask is not None:
        masks.append(_take_rows(inputs.mask, positions))
    if inputs.bias is not None:
        lowest = float(jnp.finfo(inputs.bias.dtype).min)  # type: ignore[no-untyped-call]
        # Not `>`, which would hide a NaN: it is visible and spoils its row.
        masks.append(~(_take_rows(inputs.bias, positions) <= _array.hiding_bias(lowest)))
    if settings.causal:
        masks.append(column <= row)
    if settings.window is not None:
        left, right = settings.window
        masks.append((row <= column + left) & (row >= column - right))
    if inputs.query_lengths is not None:
        masks.append(row < inputs.query_lengths[:, None, None, None, None])
    if inputs.key_lengths is not None:
        masks.append(column < inputs.key_lengths[:, None, None, None, None])
    return functools.reduce(operator.and_, masks) if masks else None


def _take_rows(array: Array, positions: Int[Array, " rows"]) -> Array:
    """Take the rows of a mask that a block needs; a padded block repeats the last one."""
    if array.shape[3] == 1:
        return array
    return jnp.take(array, positions, axis=3, mode="clip")
