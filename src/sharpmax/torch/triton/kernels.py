"""Triton kernels of the forward pass, and the tile functions that they share with the gradients.

    logit = softcap * tanh(scale * <q, k> / softcap) + bias,  where row i sees keys i - before to
    i + after and the mask allows it; -inf elsewhere

    pass one, over the keys:          l = sum 2**o_j,  t = sum o_j * 2**o_j,  o_j = s_j - max s
    entropy, log-sum-exp (bits):      log2 l - t / l,  max s + log2 l
    pass two, over keys and values:   output = sum_j 2**(b * s_j) * v_j / sum_j 2**(b * s_j)

Logits are in bits, 1 / log 2 times their value in nats, because the hardware has exp2. A tile is
the logits of a block of rows by a block of keys. A program has a block of rows of one head and
walks over the keys that any of them can see by its position; its running sums are scaled down when
a larger logit comes. Importing this file needs triton.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))

FLOOR = tl.constexpr(-1e4)
"""The lowest offset below a row's maximum. 2**FLOOR is 0 in every type and FLOOR is finite, so that
their product is 0, where -inf would give NaN."""

HUGE = tl.constexpr(1e38)
"""Stands for a maximum of +inf: every finite logit is far below it."""

NO_MASK, BOOLEAN, ADDITIVE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def offset(logit, top):
    """Return a logit's distance below its row's maximum, from FLOOR to 0; NaN stays NaN."""
    top = tl.where(top == float("inf"), HUGE, tl.where(top == -float("inf"), 0.0, top))
    below = logit - top
    below = tl.where(below < FLOOR, FLOOR, below)
    return tl.where(below > 0, 0.0, below)


INTERPRETED = tl.constexpr(not isinstance(offset, triton.JITFunction))
"""Whether Triton's interpreter runs the kernels, on the CPU."""


@triton.jit
def dot(left, right):
    """Multiply matrices, summed in float32 or better; float32 is not rounded to tf32."""
    if INTERPRETED and left.dtype == tl.bfloat16:
        # The interpreter would multiply the bits of bfloat16 as integers.
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def tanh(x):
    """Compute tanh from exp2, and from a polynomial near 0, where 1 - exp2 would cancel."""
    size = tl.abs(x)
    small = tl.exp2(size * (-2 * LOG2_E))
    far = (1 - small) / (1 + small)
    far = tl.where(x < 0, -far, far)
    if x.dtype == tl.float64:
        return far
    # Fitted: the largest relative error below 0.5 is 1.5e-8, a quarter of float32's.
    z = x * x
    bend = 0.0172570497
    bend = bend * z - 0.0530529806
    bend = bend * z + 0.133259878
    bend = bend * z - 0.333331484
    return tl.where(size < 0.5, x + x * z * bend, far)


@triton.jit
def load_tile(matrix, rows, row_stride, length, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Load rows of a matrix, with zeros beyond its edges."""
    columns = tl.arange(0, PADDED)
    inside = (rows < length)[:, None] & (columns < SIZE)[None, :]
    places = rows.to(tl.int64)[:, None] * row_stride + columns[None, :]
    return tl.load(matrix + places, mask=inside, other=0.0)


@triton.jit
def store_tile(matrix, tile, rows, length, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Store rows of a contiguous matrix."""
    columns = tl.arange(0, PADDED)
    inside = (rows < length)[:, None] & (columns < SIZE)[None, :]
    places = rows.to(tl.int64)[:, None] * SIZE + columns[None, :]
    tl.store(matrix + places, tile.to(matrix.dtype.element_ty), mask=inside)


@triton.jit
def visible_by_position(rows, columns, queries, keys, before, after):
    """Return which keys of a tile each row can see by its position."""
    inside = (rows < queries)[:, None] & (columns < keys)[None, :]
    distance = columns[None, :] - rows[:, None]
    return inside & (distance <= after) & (distance >= -before)


@triton.jit
def visible_by_mask(
    visible,
    mask,
    rows,
    columns,
    row_stride,
    column_stride,
    MASK: tl.constexpr,
    LOWEST: tl.constexpr,
):
    """Return which visible keys the mask allows, and what it adds to the logits."""
    places = rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    added = 0.0
    if MASK == BOOLEAN:
        visible = visible & (tl.load(mask + places, mask=visible, other=0) != 0)
    else:
        added = tl.load(mask + places, mask=visible, other=0.0)
        if added.dtype != tl.float64:
            added = added.to(tl.float32)
        visible = visible & ((added > LOWEST) | (added != added))  # a NaN is visible
    return visible, added


@triton.jit
def logits(
    query, key, rows, columns, queries, keys, before, after, scale, cap,
    mask, mask_row, mask_column, MASK: tl.constexpr, CAPPED: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """Return a tile's logits in bits, -inf where a key is hidden, and their slope in
    scale * <q, k>.
    """
    bits = dot(query, tl.trans(key))
    slope = 1.0
    if CAPPED:
        bent = tanh(bits * (scale / cap))
        slope = 1 - bent * bent
        bits = bent * (cap * LOG2_E)
    else:
        bits = bits * (scale * LOG2_E)
    visible = visible_by_position(rows, columns, queries, keys, before, after)
    if MASK != NO_MASK:
        visible, added = visible_by_mask(
            visible, mask, rows, columns, mask_row, mask_column, MASK, LOWEST
        )
        bits = bits + added * LOG2_E
    return tl.where(visible, bits, -float("inf")), slope


@triton.jit
def sharpened(bits, factor):
    """Return b * logit; a hidden key stays hidden, whatever b is."""
    return tl.where(bits == -float("inf"), bits, bits * factor[:, None])


@triton.jit
def first_and_last(start, BLOCK: tl.constexpr, STEP: tl.constexpr, before, after, length):
    """Return the range of positions that a block from `start` can see, from a multiple of STEP."""
    first = tl.maximum(start - before, 0) // STEP * STEP
    return first, tl.minimum(start + BLOCK + after, length)


@triton.jit
def statistics(
    query, key, mask, top_out, log_total_out, mean_out, variance_out, low_out,
    heads, group, queries, keys, before, after, scale, cap,
    q_batch, q_head, q_row, k_batch, k_head, k_row, m_batch, m_head, m_row, m_column,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, MASK: tl.constexpr, CAPPED: tl.constexpr,
    LOWEST: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Store each row's maximum, log2 of l, t / l (the mean offset), variance of the offsets and
    minimum, in bits.
    """
    blocks = tl.cdiv(queries, BLOCK_ROWS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_ROWS
    batch, head = pair // heads, pair % heads
    query += batch * q_batch + head * q_head
    key += batch * k_batch + head // group * k_head
    if MASK != NO_MASK:
        mask += batch * m_batch + head * m_head
    wide = top_out.dtype.element_ty
    rows = start + tl.arange(0, BLOCK_ROWS)
    q = load_tile(query, rows, q_row, queries, DIM, PADDED_DIM)
    top = tl.full((BLOCK_ROWS,), -float("inf"), wide)
    low = tl.full((BLOCK_ROWS,), float("inf"), wide)
    total = tl.zeros((BLOCK_ROWS,), wide)
    moment = tl.zeros((BLOCK_ROWS,), wide)
    squared = tl.zeros((BLOCK_ROWS,), wide)
    first, last = first_and_last(start, BLOCK_ROWS, BLOCK_KEYS, before, after, keys)
    for begin in range(first, last, BLOCK_KEYS):
        columns = begin + tl.arange(0, BLOCK_KEYS)
        k = load_tile(key, columns, k_row, keys, DIM, PADDED_DIM)
        bits, _ = logits(
            q, k, rows, columns, queries, keys, before, after, scale, cap,
            mask, m_row, m_column, MASK, CAPPED, LOWEST,
        )  # fmt: skip
        new = tl.maximum(top, tl.max(bits, 1))
        below = offset(bits, new[:, None])
        weights = tl.exp2(below)
        step = offset(top, new)
        shrink = tl.exp2(step)
        squared = (squared + step * (2 * moment + step * total)) * shrink
        squared += tl.sum(below * below * weights, 1)
        moment = (moment + total * step) * shrink + tl.sum(below * weights, 1)
        total = total * shrink + tl.sum(weights, 1)
        low = tl.minimum(low, tl.min(tl.where(bits == -float("inf"), float("inf"), bits), 1))
        top = new
    # A maximum may skip a NaN, a sum does not.
    top = tl.where(total == total, top, total)
    low = tl.where(total == total, low, total)
    total = tl.where(total == 0, 1.0, total)
    places = pair * queries + rows
    inside = rows < queries
    tl.store(top_out + places, top, mask=inside)
    tl.store(low_out + places, low, mask=inside)
    tl.store(log_total_out + places, tl.log2(total), mask=inside)
    mean = moment / total
    variance = squared / total - mean * mean
    tl.store(mean_out + places, mean, mask=inside)
    tl.store(variance_out + places, tl.where(variance < 0, 0.0, variance), mask=inside)


@triton.jit
def attend(
    query, key, value, mask, factor, sinks, output, top_out, log_total_out,
    heads, group, queries, keys, before, after, scale, cap,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    m_batch, m_head, m_row, m_column,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr,
    MASK: tl.constexpr, CAPPED: tl.constexpr, LOWEST: tl.constexpr, SINKS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Store each row's output, and maximum and log2 of the sum of its sharpened logits with the
    sink.
    """
    blocks = tl.cdiv(queries, BLOCK_ROWS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_ROWS
    batch, head = pair // heads, pair % heads
    query += batch * q_batch + head * q_head
    key += batch * k_batch + head // group * k_head
    value += batch * v_batch + head // group * v_head
    if MASK != NO_MASK:
        mask += batch * m_batch + head * m_head
    wide = top_out.dtype.element_ty
    rows = start + tl.arange(0, BLOCK_ROWS)
    inside = rows < queries
    places = pair * queries + rows
    q = load_tile(query, rows, q_row, queries, DIM, PADDED_DIM)
    b = tl.load(factor + places, mask=inside, other=1.0)
    top = tl.full((BLOCK_ROWS,), -float("inf"), wide)
    total = tl.zeros((BLOCK_ROWS,), wide)
    weighted = tl.zeros((BLOCK_ROWS, PADDED_SIZE), wide)
    first, last = first_and_last(start, BLOCK_ROWS, BLOCK_KEYS, before, after, keys)
    for begin in range(first, last, BLOCK_KEYS):
        columns = begin + tl.arange(0, BLOCK_KEYS)
        k = load_tile(key, columns, k_row, keys, DIM, PADDED_DIM)
        bits, _ = logits(
            q, k, rows, columns, queries, keys, before, after, scale, cap,
            mask, m_row, m_column, MASK, CAPPED, LOWEST,
        )  # fmt: skip
        sharp = sharpened(bits, b)
        new = tl.maximum(top, tl.max(sharp, 1))
        weights = tl.exp2(offset(sharp, new[:, None]))
        shrink = tl.exp2(offset(top, new))
        total = total * shrink + tl.sum(weights, 1)
        v = load_tile(value, columns, v_row, keys, SIZE, PADDED_SIZE)
        weighted = weighted * shrink[:, None] + dot(weights.to(v.dtype), v)
        top = new
    if SINKS:
        sink = tl.load(sinks + head) * LOG2_E
        new = tl.maximum(top, sink)
        shrink = tl.exp2(offset(top, new))
        total = total * shrink + tl.exp2(offset(sink, new))
        weighted = weighted * shrink[:, None]
        top = new
    total = tl.where(total == 0, 1.0, total)
    tl.store(top_out + places, top, mask=inside)
    tl.store(log_total_out + places, tl.log2(total), mask=inside)
    output += pair * queries * SIZE
    store_tile(output, weighted / total[:, None], rows, queries, SIZE, PADDED_SIZE)


@triton.jit
def count(
    mask, count_out, heads, queries, keys, before, after, m_batch, m_head, m_row, m_column,
    MASK: tl.constexpr, LOWEST: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Store how many keys each row can see."""
    blocks = tl.cdiv(queries, BLOCK_ROWS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_ROWS
    mask += pair // heads * m_batch + pair % heads * m_head
    rows = start + tl.arange(0, BLOCK_ROWS)
    visible_keys = tl.zeros((BLOCK_ROWS,), tl.int32)
    first, last = first_and_last(start, BLOCK_ROWS, BLOCK_KEYS, before, after, keys)
    for begin in range(first, last, BLOCK_KEYS):
        columns = begin + tl.arange(0, BLOCK_KEYS)
        visible = visible_by_position(rows, columns, queries, keys, before, after)
        visible, _ = visible_by_mask(visible, mask, rows, columns, m_row, m_column, MASK, LOWEST)
        visible_keys += tl.sum(visible.to(tl.int32), 1)
    tl.store(count_out + pair * queries + rows, visible_keys, mask=rows < queries)
