"""What the kernels of `impl="triton"` share: a tile of logits, rows of a block by keys of a block.

    logit = softcap * tanh(scale * <q, k> / softcap) + bias,  where row i sees keys i - before to
    i + after and the mask allows it; -inf elsewhere

Logits are in bits, 1 / log 2 of their value in nats, because exp2 is what the hardware has.
Importing this file needs triton.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))

FLOOR = tl.constexpr(-1e4)
"""The lowest offset below a row's top. 2**FLOOR is 0 in every type, and FLOOR is a number, so that
the product of both is 0: where -inf would give NaN."""

HUGE = tl.constexpr(1e38)
"""Stands for a top of +inf: every finite logit is far below it."""

NO_MASK, BOOLEAN, ADDITIVE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def offset(logit, top):
    """How far a logit lies below its row's top: FLOOR to 0; a NaN stays."""
    top = tl.where(top == float("inf"), HUGE, tl.where(top == -float("inf"), 0.0, top))
    below = logit - top
    below = tl.where(below < FLOOR, FLOOR, below)
    return tl.where(below > 0, 0.0, below)


INTERPRETED = tl.constexpr(not isinstance(offset, triton.JITFunction))
"""Whether Triton's interpreter runs the kernels, on the CPU."""


@triton.jit
def dot(left, right):
    """A product of matrices, summed in float32 at the least; float32 is not rounded to tf32."""
    if INTERPRETED and left.dtype == tl.bfloat16:
        # The interpreter would multiply the bits of bfloat16 as whole numbers.
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def tanh(x):
    """tanh from exp2, and from a polynomial near 0, where 1 - exp2 would cancel."""
    size = tl.abs(x)
    small = tl.exp2(size * (-2 * LOG2_E))
    far = (1 - small) / (1 + small)
    far = tl.where(x < 0, -far, far)
    if x.dtype == tl.float64:
        return far
    # Fitted so that the largest relative error below 0.5 is 1.5e-8, a quarter of float32's.
    z = x * x
    bend = 0.0172570497
    bend = bend * z - 0.0530529806
    bend = bend * z + 0.133259878
    bend = bend * z - 0.333331484
    return tl.where(size < 0.5, x + x * z * bend, far)


@triton.jit
def load_tile(matrix, rows, row_stride, length, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Rows of a matrix, and zeros beyond its edges."""
    columns = tl.arange(0, PADDED)
    inside = (rows < length)[:, None] & (columns < SIZE)[None, :]
    places = rows.to(tl.int64)[:, None] * row_stride + columns[None, :]
    return tl.load(matrix + places, mask=inside, other=0.0)


@triton.jit
def store_tile(matrix, tile, rows, length, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Rows into a matrix that has no gaps."""
    columns = tl.arange(0, PADDED)
    inside = (rows < length)[:, None] & (columns < SIZE)[None, :]
    places = rows.to(tl.int64)[:, None] * SIZE + columns[None, :]
    tl.store(matrix + places, tile.to(matrix.dtype.element_ty), mask=inside)


@triton.jit
def seen_by_position(rows, columns, queries, keys, before, after):
    inside = (rows < queries)[:, None] & (columns < keys)[None, :]
    distance = columns[None, :] - rows[:, None]
    return inside & (distance <= after) & (distance >= -before)


@triton.jit
def seen_by_mask(
    seen, mask, rows, columns, row_stride, column_stride, MASK: tl.constexpr, LOWEST: tl.constexpr
):
    """What of `seen` the mask lets through, and what it adds: 0, or a number."""
    places = rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    added = 0.0
    if MASK == BOOLEAN:
        seen = seen & (tl.load(mask + places, mask=seen, other=0) != 0)
    else:
        added = tl.load(mask + places, mask=seen, other=0.0)
        if added.dtype != tl.float64:
            added = added.to(tl.float32)
        seen = seen & (added > LOWEST)
    return seen, added


@triton.jit
def logits(
    query, key, rows, columns, queries, keys, before, after, scale, cap,
    mask, mask_row, mask_column, MASK: tl.constexpr, CAPPED: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Logits of a tile in bits, -inf where the key is hidden, and their slope in scale * <q, k>."""
    bits = dot(query, tl.trans(key))
    slope = 1.0
    if CAPPED:
        bent = tanh(bits * (scale / cap))
        slope = 1 - bent * bent
        bits = bent * (cap * LOG2_E)
    else:
        bits = bits * (scale * LOG2_E)
    seen = seen_by_position(rows, columns, queries, keys, before, after)
    if MASK != NO_MASK:
        seen, added = seen_by_mask(seen, mask, rows, columns, mask_row, mask_column, MASK, LOWEST)
        bits = bits + added * LOG2_E
    return tl.where(seen, bits, -float("inf")), slope


@triton.jit
def sharpened(bits, factor):
    """b * logit; hidden stays hidden, whatever b is."""
    return tl.where(bits == -float("inf"), bits, bits * factor[:, None])


@triton.jit
def first_and_last(start, BLOCK: tl.constexpr, STEP: tl.constexpr, before, after, length):
    """From a multiple of STEP to where the positions end that a block from `start` can see."""
    first = tl.maximum(start - before, 0) // STEP * STEP
    return first, tl.minimum(start + BLOCK + after, length)
