"""The gradients of adaptive attention, compiled by numba.

A row has logits s, an entropy H, an inverse temperature b that depends on H, and an output o:

    p = softmax(s)    w = softmax(b s)    o = sum_j w_j v_j

For a gradient g of the output, with the derivative b' of the policy:

    x_j  = w_j (<g, v_j> - <g, o>)
    db   = sum_j s_j x_j
    ds_j = b x_j - db b' p_j (s_j - sum_i p_i s_i)

because dH/ds_j = -p_j (s_j - sum_i p_i s_i). The derivative db needs the whole row. So a block of
rows goes over its keys twice: first for the logits, x and db, which are kept in the cache, then for
ds. Logits are computed once, and the two sums over keys need one exponential each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from sharpmax.cpu.arithmetic import (
    LOG_2,
    LOWEST,
    SUMS,
    Float32,
    array_type,
    exp2,
    inner,
    outer,
)
from sharpmax.cpu.kernels import FIRST_GROUP, FIRST_ROW, GROUP, LAST_ROW, gather, visible
from sharpmax.cpu.tiles import VANISHES, add_bias, apply_mask, apply_softcap

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

BLOCK, PART = 0, 1
"""Columns of a task besides those of `kernels`: its key head, counted over all batch entries, and
the part of the gradients of keys and values that it adds to."""

TOP, TOTAL, ENTROPY, FACTOR, MASS, SLOPE, MEAN = range(7)
"""What is known of each row: the largest logit in bits, the sum of exp(s - largest), the entropy in
nats, the inverse temperature, the sum of exp(b (s - largest)), the policy's derivative, and <g, o>.
"""
KNOWN = 7

_float, _int = types.float32, types.int64
_pair: Any = types.UniTuple(_int, 2)  # type: ignore[no-untyped-call]
_positions: Any = types.UniTuple(_int, 3)  # type: ignore[no-untyped-call]
_numbers: Any = types.UniTuple(_float, 3)  # type: ignore[no-untyped-call]
DIFFERENTIATE = types.void(
    *(array_type(_float, 5, "A"), array_type(_float, 4), array_type(_float, 4)),
    *(array_type(_float, 5, "A"), array_type(types.boolean, 5, "A")),
    *(array_type(_float, 5, "A"), array_type(_float, 5)),
    *(array_type(_int, 2), _pair, _int, _positions, _numbers, _float[::1]),
    *(types.Array(_float, 5, "C"), types.Array(_float, 4, "C"), types.Array(_float, 4, "C")),
    types.Array(_float, 4, "C"),
)


@inner(fastmath=SUMS)
def _first_row_sums(
    logits: Float[np.ndarray, "rows keys"],
    products: Float[np.ndarray, "rows keys"],
    weights: Float[np.ndarray, "rows keys"],
    r: int,
    begin: int,
    end: int,
    numbers: tuple[Float32, Float32, Float32, Float32],
) -> Any:
    """Replace <g, v> by x and write the weights; return sum_j (s_j - largest) x_j, in bits.

    `numbers` are the largest logit, the factor, one over the mass, and <g, o>. The largest logit
    may be subtracted because the x of a row add up to 0.
    """
    top, factor, share, mean = numbers
    moment = Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        offset = logits[r, j] - top
        weight = exp2(offset * factor) * share
        # A hidden key has an offset of -inf, and its product with a weight of 0 would be NaN.
        offset = LOWEST if offset < LOWEST else offset
        x = weight * (products[r, j] - mean)
        weights[r, j] = weight
        products[r, j] = x
        logits[r, j] = offset
        moment += offset * x
    return moment


@inner(fastmath=SUMS)
def _second_row_sums(
    offsets: Float[np.ndarray, "rows keys"],
    products: Float[np.ndarray, "rows keys"],
    r: int,
    begin: int,
    end: int,
    numbers: tuple[Float32, Float32, Float32],
) -> None:
    """Replace x by ds. `numbers` are b, db b' / total, and the mean offset in nats."""
    factor, change, mean = numbers
    for j in range(np.uintp(begin), np.uintp(end)):
        offset = offsets[r, j]
        entropy_part = exp2(offset) * (Float32(LOG_2) * offset - mean)
        products[r, j] = factor * products[r, j] - change * entropy_part


@inner(fastmath=SUMS)
def _scale_row(
    products: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int, factor: Any
) -> None:
    for j in range(np.uintp(begin), np.uintp(end)):
        products[r, j] *= factor


@inner(fastmath=SUMS)
def _undo_softcap(
    offsets: Float[np.ndarray, "rows keys"],
    products: Float[np.ndarray, "rows keys"],
    r: int,
    begin: int,
    end: int,
    top: Any,
    softcap: Any,
) -> None:
    """Multiply by the derivative of softcap * tanh: 1 - tanh**2."""
    for j in range(np.uintp(begin), np.uintp(end)):
        bent = (offsets[r, j] + top) / softcap
        products[r, j] *= Float32(1) - bent * bent


@inner()
def _clear_edges(tile: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> None:
    """Write 0 for the keys that a row does not see by its position."""
    for j in range(np.uintp(begin)):
        tile[r, j] = Float32(0)
    for j in range(np.uintp(end), np.uintp(tile.shape[1])):
        tile[r, j] = Float32(0)


@inner()
def _add(part: Float[np.ndarray, "rows dim"], total: Float[np.ndarray, "rows dim"]) -> None:
    for r in range(np.uintp(part.shape[0])):
        for j in range(np.uintp(part.shape[1])):
            total[r, j] += part[r, j]


@inner()
def _first_pass(
    scaled: Float[np.ndarray, "rows dim"],
    key: Float[np.ndarray, "keys dim"],
    value: Float[np.ndarray, "keys value_dim"],
    gradient: Float[np.ndarray, "rows value_dim"],
    bias: Float[np.ndarray, "batch kv_heads group query key"],
    mask: Bool[np.ndarray, "batch kv_heads group query key"],
    place: tuple[int, int, int, int, int],
    queries: int,
    tile: int,
    settings: tuple[Float32, Float32, Float32],
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
    known: Float[np.ndarray, "7 rows"],
    memory: Float[np.ndarray, " size"],
    moment: Float[np.ndarray, " rows"],
    d_value: Float[np.ndarray, "keys value_dim"],
) -> None:
    """Write the offsets of the logits and x of a block into `memory`; add to d_value."""
    _, softcap, lowest = settings
    rows, keys = known.shape[1], key.shape[0]
    weights_memory = np.empty(rows * tile, np.float32)
    part_memory = np.empty(tile * value.shape[1], np.float32)
    for at in range(0, keys, tile):
        wide = min(tile, keys - at)
        logits = memory[rows * at : rows * (at + wide)].reshape(rows, wide)
        products = memory[rows * (keys + at) : rows * (keys + at + wide)].reshape(rows, wide)
        weights = weights_memory[: rows * wide].reshape(rows, wide)
        part = part_memory[: wide * value.shape[1]].reshape(wide, value.shape[1])
        np.dot(scaled, key[at : at + wide].T, logits)
        if softcap > 0:
            apply_softcap(logits, softcap)
        n, h, g, q, k = place
        if bias.size > 0:
            add_bias(logits, bias, (n, h, g, q, k + at), queries, lowest)
        if mask.size > 0:
            apply_mask(logits, mask, (n, h, g, q, k + at), queries)
        np.dot(gradient, value[at : at + wide].T, products)
        for r in range(np.uintp(rows)):
            begin = min(max(first[r] - at, 0), wide)
            end = max(min(stop[r] - at, wide), begin)
            if known[MASS, r] == 0:  # a row that sees nothing
                end = begin
            _clear_edges(weights, r, begin, end)
            share = Float32(1) / known[MASS, r] if end > begin else Float32(0)
            # So that the weight of a hidden key is 0.
            factor = VANISHES if known[FACTOR, r] < VANISHES else known[FACTOR, r]
            numbers = (known[TOP, r], factor, share, known[MEAN, r])
            moment[r] += _first_row_sums(logits, products, weights, r, begin, end, numbers)
        np.dot(weights.T, gradient, part)
        _add(part, d_value[at : at + wide])


@inner()
def _second_pass(
    scaled: Float[np.ndarray, "rows dim"],
    key: Float[np.ndarray, "keys dim"],
    tile: int,
    settings: tuple[Float32, Float32, Float32],
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
    known: Float[np.ndarray, "7 rows"],
    memory: Float[np.ndarray, " size"],
    d_factor: Float[np.ndarray, " rows"],
    d_query: Float[np.ndarray, "rows dim"],
    d_key: Float[np.ndarray, "keys dim"],
) -> None:
    """Turn x into ds; write the sum over keys, and add to d_key."""
    rows, keys, dim = known.shape[1], key.shape[0], key.shape[1]
    query_part = np.empty((rows, dim), np.float32)
    part_memory = np.empty(tile * dim, np.float32)
    for r in range(np.uintp(rows)):
        for j in range(np.uintp(dim)):
            d_query[r, j] = Float32(0)
    for at in range(0, keys, tile):
        wide = min(tile, keys - at)
        offsets = memory[rows * at : rows * (at + wide)].reshape(rows, wide)
        products = memory[rows * (keys + at) : rows * (keys + at + wide)].reshape(rows, wide)
        part = part_memory[: wide * dim].reshape(wide, dim)
        for r in range(np.uintp(rows)):
            begin = min(max(first[r] - at, 0), wide)
            end = max(min(stop[r] - at, wide), begin)
            if known[MASS, r] == 0:
                end = begin
            change = d_factor[r] * known[SLOPE, r]
            if change == 0:
                _scale_row(products, r, begin, end, known[FACTOR, r])
            else:
                mean = Float32(np.log(known[TOTAL, r])) - known[ENTROPY, r]
                # The mean offset is negative: the entropy is log(total) minus it.
                numbers = (known[FACTOR, r], change / known[TOTAL, r], mean)
                _second_row_sums(offsets, products, r, begin, end, numbers)
            if settings[1] > 0:
                _undo_softcap(offsets, products, r, begin, end, known[TOP, r], settings[1])
            _clear_edges(products, r, begin, end)
        np.dot(products, key[at : at + wide], query_part)
        _add(query_part, d_query)
        np.dot(products.T, scaled, part)
        _add(part, d_key[at : at + wide])


@outer(DIFFERENTIATE)
def differentiate_tasks(
    query: Float[np.ndarray, "batch kv_heads group query dim"],
    key: Float[np.ndarray, "batch kv_heads key dim"],
    value: Float[np.ndarray, "batch kv_heads key value_dim"],
    bias: Float[np.ndarray, "batch kv_heads group query key"],
    mask: Bool[np.ndarray, "batch kv_heads group query key"],
    gradient: Float[np.ndarray, "batch kv_heads group query value_dim"],
    rows_known: Float[np.ndarray, "7 batch kv_heads group query"],
    tasks: Int[np.ndarray, "tasks 6"],
    which: tuple[int, int],
    tile: int,
    positions: tuple[int, int, int],
    settings: tuple[Float32, Float32, Float32],
    memory: Float[np.ndarray, " size"],
    d_query: Float[np.ndarray, "batch kv_heads group query dim"],
    d_key: Float[np.ndarray, "part blocks key dim"],
    d_value: Float[np.ndarray, "part blocks key value_dim"],
    d_factor: Float[np.ndarray, "batch kv_heads group query"],
) -> None:
    """Run a range of tasks: write their rows of d_query and d_factor, and add to d_key and d_value.

    `d_key` is in the unit of `settings`' scale, in bits. `settings` are scale, softcap and the bias
    that hides a key.
    """
    heads, all_keys = key.shape[1], key.shape[2]
    for t in range(which[0], which[1]):
        task = tasks[t]
        queries = task[LAST_ROW] - task[FIRST_ROW]
        rows = queries * task[GROUP]
        first, stop = np.empty(rows, np.int64), np.empty(rows, np.int64)
        begins, ends = visible(task, positions, all_keys, first, stop)
        n, h = task[BLOCK] // heads, task[BLOCK] % heads
        g, q = task[FIRST_GROUP], task[FIRST_ROW]
        scaled = np.empty((rows, query.shape[4]), np.float32)
        outer_gradient = np.empty((rows, value.shape[3]), np.float32)
        gather(query, (n, h, g, q), queries, settings[0], scaled)
        gather(gradient, (n, h, g, q), queries, Float32(1), outer_gradient)
        known = np.empty((KNOWN, rows), np.float32)
        for i in range(KNOWN):
            for r in range(np.uintp(rows)):
                known[i, r] = rows_known[i, n, h, g + r // queries, q + r % queries]
        moment = np.zeros(rows, np.float32)
        found = np.empty((rows, query.shape[4]), np.float32)
        place = n, h, g, q, begins
        keys = key[n, h, begins:ends]
        _first_pass(
            *(scaled, keys, value[n, h, begins:ends], outer_gradient, bias, mask, place, queries),
            *(tile, settings, first, stop, known, memory, moment),
            d_value[task[PART], task[BLOCK], begins:ends],
        )
        for r in range(np.uintp(rows)):
            moment[r] *= Float32(LOG_2)
        _second_pass(
            *(scaled, keys, tile, settings, first, stop, known, memory, moment, found),
            d_key[task[PART], task[BLOCK], begins:ends],
        )
        for r in range(np.uintp(rows)):
            group, at = g + r // queries, q + r % queries
            d_factor[n, h, group, at] = moment[r]
            for j in range(np.uintp(found.shape[1])):
                d_query[n, h, group, at, j] = found[r, j]
