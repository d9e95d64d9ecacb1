"""The kernels of `impl="triton"`, forward: what each row of attention is, and what it weighs.

    pass one, over the keys:          l = sum 2**o_j,  t = sum o_j * 2**o_j,  o_j = s_j - max s
    entropy, log-sum-exp (bits):      log2 l - t / l,  max s + log2 l
    pass two, over keys and values:   output = sum_j 2**(b * s_j) * v_j / sum_j 2**(b * s_j)

A program has a block of rows of one head and walks over the keys that any of them can see by its
position, block by block; what it knows so far is scaled down when a larger logit comes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sharpmax.torch.triton_tiles import (
    LOG2_E,
    NO_MASK,
    dot,
    first_and_last,
    load_tile,
    logits,
    offset,
    seen_by_mask,
    seen_by_position,
    sharpened,
    store_tile,
)


@triton.jit
def statistics(
    query, key, mask, top_out, log_total_out, mean_out, low_out,
    heads, group, queries, keys, before, after, scale, cap,
    q_batch, q_head, q_row, k_batch, k_head, k_row, m_batch, m_head, m_row, m_column,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, MASK: tl.constexpr, CAPPED: tl.constexpr,
    LOWEST: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Of every row: its top, log2 of l, t / l (the mean offset) and its lowest logit, in bits."""
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
        moment = (moment + total * step) * shrink + tl.sum(below * weights, 1)
        total = total * shrink + tl.sum(weights, 1)
        low = tl.minimum(low, tl.min(tl.where(bits == -float("inf"), float("inf"), bits), 1))
        top = new
    # A maximum may pass over a NaN, a sum does not.
    top = tl.where(total == total, top, total)
    low = tl.where(total == total, low, total)
    total = tl.where(total == 0, 1.0, total)
    places = pair * queries + rows
    inside = rows < queries
    tl.store(top_out + places, top, mask=inside)
    tl.store(low_out + places, low, mask=inside)
    tl.store(log_total_out + places, tl.log2(total), mask=inside)
    tl.store(mean_out + places, moment / total, mask=inside)


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
    """The output of every row, and the top and log2 of the sum of its sharpened logits, sinks
    among them.
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
    """How many keys each row can see."""
    blocks = tl.cdiv(queries, BLOCK_ROWS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_ROWS
    mask += pair // heads * m_batch + pair % heads * m_head
    rows = start + tl.arange(0, BLOCK_ROWS)
    seen_keys = tl.zeros((BLOCK_ROWS,), tl.int32)
    first, last = first_and_last(start, BLOCK_ROWS, BLOCK_KEYS, before, after, keys)
    for begin in range(first, last, BLOCK_KEYS):
        columns = begin + tl.arange(0, BLOCK_KEYS)
        seen = seen_by_position(rows, columns, queries, keys, before, after)
        seen, _ = seen_by_mask(seen, mask, rows, columns, m_row, m_column, MASK, LOWEST)
        seen_keys += tl.sum(seen.to(tl.int32), 1)
    tl.store(count_out + pair * queries + rows, seen_keys, mask=rows < queries)
