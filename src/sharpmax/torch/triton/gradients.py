"""Triton kernels of the backward pass: exact gradients without the matrix of weights.

    of the statistics:  ds_j = p_j * (dL - dH * (o_j - mean o)),   p = softmax(s)
    of the output:      ds_j = b * w_j * (dw_j - delta),           w = softmax(b * s and the sink)
                        db   = sum_j w_j * (dw_j - delta) * s_j,   dw_j = <d output, v_j>

delta is sum_j w_j * dw_j = <d output, output>. Weights are computed again from each row's maximum
and sum. One kernel walks over the keys for the gradients of a row. The other walks over the rows of
every query head that shares the keys, for the gradients of a key. So only the gradient of a bias
needs atomic additions.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from sharpmax.torch.triton.kernels import (
    NO_MASK,
    dot,
    first_and_last,
    load_tile,
    logits,
    offset,
    sharpened,
    store_tile,
)

LOG_2 = tl.constexpr(math.log(2))


@triton.jit
def add_to_bias(bias, gradient, bits, rows, columns, row_stride, column_stride):
    """Add to the gradient of a bias, which several rows may share."""
    places = rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    tl.atomic_add(bias + places, gradient, mask=bits != -float("inf"), sem="relaxed")


@triton.jit
def statistics_rows(
    query, key, mask, top_in, log_total_in, mean_in, d_entropy_in, d_total_in, d_query, d_bias,
    heads, group, queries, keys, before, after, scale, cap,
    q_batch, q_head, q_row, k_batch, k_head, k_row, m_batch, m_head, m_row, m_column,
    g_batch, g_head, g_row, g_column,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, MASK: tl.constexpr, CAPPED: tl.constexpr,
    LOWEST: tl.constexpr, BIAS_GRADIENT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of entropy and log-sum-exp (nats) in the queries and the bias."""
    blocks = tl.cdiv(queries, BLOCK_ROWS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_ROWS
    batch, head = pair // heads, pair % heads
    query += batch * q_batch + head * q_head
    key += batch * k_batch + head // group * k_head
    if MASK != NO_MASK:
        mask += batch * m_batch + head * m_head
    if BIAS_GRADIENT:
        d_bias += batch * g_batch + head * g_head
    rows = start + tl.arange(0, BLOCK_ROWS)
    q = load_tile(query, rows, q_row, queries, DIM, PADDED_DIM)
    places, inside = pair * queries + rows, rows < queries
    top = tl.load(top_in + places, mask=inside, other=0.0)[:, None]
    log_total = tl.load(log_total_in + places, mask=inside, other=0.0)[:, None]
    mean = tl.load(mean_in + places, mask=inside, other=0.0)[:, None]
    d_entropy = tl.load(d_entropy_in + places, mask=inside, other=0.0)[:, None] * LOG_2
    d_total = tl.load(d_total_in + places, mask=inside, other=0.0)[:, None]
    dq = tl.zeros((BLOCK_ROWS, PADDED_DIM), top_in.dtype.element_ty)
    first, last = first_and_last(start, BLOCK_ROWS, BLOCK_KEYS, before, after, keys)
    for begin in range(first, last, BLOCK_KEYS):
        columns = begin + tl.arange(0, BLOCK_KEYS)
        k = load_tile(key, columns, k_row, keys, DIM, PADDED_DIM)
        bits, slope = logits(
            q, k, rows, columns, queries, keys, before, after, scale, cap,
            mask, m_row, m_column, MASK, CAPPED, LOWEST,
        )  # fmt: skip
        below = offset(bits, top)
        ds = tl.exp2(below - log_total) * (d_total - d_entropy * (below - mean))
        if BIAS_GRADIENT:
            add_to_bias(d_bias, ds, bits, rows, columns, g_row, g_column)
        dq += dot((ds * slope).to(k.dtype), k)
    store_tile(d_query + pair * queries * DIM, dq * scale, rows, queries, DIM, PADDED_DIM)


@triton.jit
def statistics_keys(
    query, key, mask, top_in, log_total_in, mean_in, d_entropy_in, d_total_in, d_key,
    heads, group, queries, keys, before, after, scale, cap,
    q_batch, q_head, q_row, k_batch, k_head, k_row, m_batch, m_head, m_row, m_column,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, MASK: tl.constexpr, CAPPED: tl.constexpr,
    LOWEST: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of entropy and log-sum-exp in the keys."""
    blocks = tl.cdiv(keys, BLOCK_KEYS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_KEYS
    kv_heads = heads // group
    batch, kv_head = pair // kv_heads, pair % kv_heads
    key += batch * k_batch + kv_head * k_head
    columns = start + tl.arange(0, BLOCK_KEYS)
    k = load_tile(key, columns, k_row, keys, DIM, PADDED_DIM)
    dk = tl.zeros((BLOCK_KEYS, PADDED_DIM), top_in.dtype.element_ty)
    first, last = first_and_last(start, BLOCK_KEYS, BLOCK_ROWS, after, before, queries)
    for head in range(kv_head * group, kv_head * group + group):
        head_query = query + batch * q_batch + head * q_head
        head_mask = mask
        if MASK != NO_MASK:
            head_mask = mask + batch * m_batch + head * m_head
        for begin in range(first, last, BLOCK_ROWS):
            rows = begin + tl.arange(0, BLOCK_ROWS)
            q = load_tile(head_query, rows, q_row, queries, DIM, PADDED_DIM)
            places, inside = (batch * heads + head) * queries + rows, rows < queries
            top = tl.load(top_in + places, mask=inside, other=0.0)[:, None]
            log_total = tl.load(log_total_in + places, mask=inside, other=0.0)[:, None]
            mean = tl.load(mean_in + places, mask=inside, other=0.0)[:, None]
            d_entropy = tl.load(d_entropy_in + places, mask=inside, other=0.0)[:, None] * LOG_2
            d_total = tl.load(d_total_in + places, mask=inside, other=0.0)[:, None]
            bits, slope = logits(
                q, k, rows, columns, queries, keys, before, after, scale, cap,
                head_mask, m_row, m_column, MASK, CAPPED, LOWEST,
            )  # fmt: skip
            below = offset(bits, top)
            ds = tl.exp2(below - log_total) * (d_total - d_entropy * (below - mean)) * slope
            dk += dot(tl.trans(ds.to(q.dtype)), q)
    store_tile(d_key + pair * keys * DIM, dk * scale, columns, keys, DIM, PADDED_DIM)


@triton.jit
def attend_rows(
    query, key, value, mask, factor, top_in, log_total_in, delta_in, d_output,
    d_query, d_factor, d_bias,
    heads, group, queries, keys, before, after, scale, cap,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    m_batch, m_head, m_row, m_column, g_batch, g_head, g_row, g_column,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr,
    MASK: tl.constexpr, CAPPED: tl.constexpr, LOWEST: tl.constexpr, BIAS_GRADIENT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Store the output's gradients in the queries, the inverse temperatures and the bias."""
    blocks = tl.cdiv(queries, BLOCK_ROWS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_ROWS
    batch, head = pair // heads, pair % heads
    query += batch * q_batch + head * q_head
    key += batch * k_batch + head // group * k_head
    value += batch * v_batch + head // group * v_head
    d_output += pair * queries * SIZE
    if MASK != NO_MASK:
        mask += batch * m_batch + head * m_head
    if BIAS_GRADIENT:
        d_bias += batch * g_batch + head * g_head
    wide = top_in.dtype.element_ty
    rows = start + tl.arange(0, BLOCK_ROWS)
    q = load_tile(query, rows, q_row, queries, DIM, PADDED_DIM)
    do = load_tile(d_output, rows, SIZE, queries, SIZE, PADDED_SIZE)
    places, inside = pair * queries + rows, rows < queries
    b = tl.load(factor + places, mask=inside, other=1.0)
    top = tl.load(top_in + places, mask=inside, other=0.0)[:, None]
    log_total = tl.load(log_total_in + places, mask=inside, other=0.0)[:, None]
    delta = tl.load(delta_in + places, mask=inside, other=0.0)[:, None]
    dq = tl.zeros((BLOCK_ROWS, PADDED_DIM), wide)
    # db has sums of its own: with large logits the rounding of delta, which comes from an output
    # in half precision, would dominate it.
    mean_dw = tl.zeros((BLOCK_ROWS,), wide)
    mean_logit = tl.zeros((BLOCK_ROWS,), wide)
    mean_both = tl.zeros((BLOCK_ROWS,), wide)
    first, last = first_and_last(start, BLOCK_ROWS, BLOCK_KEYS, before, after, keys)
    for begin in range(first, last, BLOCK_KEYS):
        columns = begin + tl.arange(0, BLOCK_KEYS)
        k = load_tile(key, columns, k_row, keys, DIM, PADDED_DIM)
        v = load_tile(value, columns, v_row, keys, SIZE, PADDED_SIZE)
        bits, slope = logits(
            q, k, rows, columns, queries, keys, before, after, scale, cap,
            mask, m_row, m_column, MASK, CAPPED, LOWEST,
        )  # fmt: skip
        weights = tl.exp2(offset(sharpened(bits, b), top) - log_total)
        dw = dot(do, tl.trans(v))
        finite = tl.where(tl.abs(bits) < float("inf"), bits, 0.0)
        mean_dw += tl.sum(weights * dw, 1)
        mean_logit += tl.sum(weights * finite, 1)
        mean_both += tl.sum(weights * dw * finite, 1)
        ds = weights * (dw - delta) * b[:, None]
        if BIAS_GRADIENT:
            add_to_bias(d_bias, ds, bits, rows, columns, g_row, g_column)
        dq += dot((ds * slope).to(k.dtype), k)
    store_tile(d_query + pair * queries * DIM, dq * scale, rows, queries, DIM, PADDED_DIM)
    tl.store(d_factor + places, (mean_both - mean_dw * mean_logit) * LOG_2, mask=inside)


@triton.jit
def attend_keys(
    query, key, value, mask, factor, top_in, log_total_in, delta_in, d_output, d_key, d_value,
    heads, group, queries, keys, before, after, scale, cap,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    m_batch, m_head, m_row, m_column,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr,
    MASK: tl.constexpr, CAPPED: tl.constexpr, LOWEST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the output in keys and values."""
    blocks = tl.cdiv(keys, BLOCK_KEYS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_KEYS
    kv_heads = heads // group
    batch, kv_head = pair // kv_heads, pair % kv_heads
    key += batch * k_batch + kv_head * k_head
    value += batch * v_batch + kv_head * v_head
    wide = top_in.dtype.element_ty
    columns = start + tl.arange(0, BLOCK_KEYS)
    k = load_tile(key, columns, k_row, keys, DIM, PADDED_DIM)
    v = load_tile(value, columns, v_row, keys, SIZE, PADDED_SIZE)
    dk = tl.zeros((BLOCK_KEYS, PADDED_DIM), wide)
    dv = tl.zeros((BLOCK_KEYS, PADDED_SIZE), wide)
    first, last = first_and_last(start, BLOCK_KEYS, BLOCK_ROWS, after, before, queries)
    for head in range(kv_head * group, kv_head * group + group):
        head_query = query + batch * q_batch + head * q_head
        head_output = d_output + (batch * heads + head) * queries * SIZE
        head_mask = mask
        if MASK != NO_MASK:
            head_mask = mask + batch * m_batch + head * m_head
        for begin in range(first, last, BLOCK_ROWS):
            rows = begin + tl.arange(0, BLOCK_ROWS)
            q = load_tile(head_query, rows, q_row, queries, DIM, PADDED_DIM)
            do = load_tile(head_output, rows, SIZE, queries, SIZE, PADDED_SIZE)
            places, inside = (batch * heads + head) * queries + rows, rows < queries
            b = tl.load(factor + places, mask=inside, other=1.0)
            top = tl.load(top_in + places, mask=inside, other=0.0)[:, None]
            log_total = tl.load(log_total_in + places, mask=inside, other=0.0)[:, None]
            delta = tl.load(delta_in + places, mask=inside, other=0.0)[:, None]
            bits, slope = logits(
                q, k, rows, columns, queries, keys, before, after, scale, cap,
                head_mask, m_row, m_column, MASK, CAPPED, LOWEST,
            )  # fmt: skip
            weights = tl.exp2(offset(sharpened(bits, b), top) - log_total)
            dv += dot(tl.trans(weights.to(do.dtype)), do)
            ds = weights * (dot(do, tl.trans(v)) - delta) * b[:, None] * slope
            dk += dot(tl.trans(ds.to(q.dtype)), q)
    store_tile(d_key + pair * keys * DIM, dk * scale, columns, keys, DIM, PADDED_DIM)
    store_tile(d_value + pair * keys * SIZE, dv, columns, keys, SIZE, PADDED_SIZE)
