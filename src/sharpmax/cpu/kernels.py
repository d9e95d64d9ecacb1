"""The arithmetic of attention in blocks of query rows, compiled by numba.

Queries are multiplied by keys once. A block's logits are kept, in tiles, until the product with the
values, so that the second exponential costs little; the inverse temperature of a row is computed
between the two. Products are those of SciPy's BLAS, on tiles that the nearest cache still holds.

One function, `attend_tasks`, does all of it, because its compilation takes seconds. A policy that
`policy_table` knows is part of it, so that a call needs no Python. Any other policy is Python's,
and `attend_tasks` is called twice, for what comes before and after.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from sharpmax.cpu.arithmetic import LOG_2, Float32, array_type, inner, maximum, outer
from sharpmax.cpu.tiles import (
    FEW_ROWS,
    add_bias,
    add_few,
    apply_mask,
    apply_softcap,
    find_largest,
    find_smallest,
    multiply,
    update_sums,
    weigh_tile,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

SURVEY, WEIGH, ALL_STAGES = range(3)
"""The stages of `attend_tasks`: logits and sums, weighted values, or both with a policy between."""

FIRST_BLOCK, BLOCKS, FIRST_GROUP, GROUP, FIRST_ROW, LAST_ROW = range(6)
"""The columns of a task, which is the same rows of several blocks. A block is `GROUP` query heads
of a key head, from `FIRST_GROUP` on; blocks count the key heads of all batch entries."""

MAXIMUM, MINIMUM, TOTAL, MOMENT, SQUARED, ENTROPY, VARENTROPY, FACTOR, MASS = range(9)
"""What is known of each row of a task: of its logits in bits, and of the sum of its weights."""
KNOWN = 9

UNLIMITED = np.iinfo(np.int64).max // 4
"""Stands for no limit of a position."""

LARGEST = Float32(np.finfo(np.float32).max / 2)

_float, _int = types.float32, types.int64
_pair: Any = types.UniTuple(_int, 2)  # type: ignore[no-untyped-call]
_positions: Any = types.UniTuple(_int, 3)  # type: ignore[no-untyped-call]
_numbers: Any = types.UniTuple(_float, 3)  # type: ignore[no-untyped-call]
_wants: Any = types.UniTuple(types.boolean, 3)  # type: ignore[no-untyped-call]
# Stated here, because numba would otherwise compile again for each layout in memory.
ATTEND = types.boolean(
    *(array_type(_float, 5, "A"), array_type(_float, 4), array_type(_float, 4)),
    *(array_type(_float, 5, "A"), array_type(types.boolean, 5, "A"), array_type(_float, 2)),
    *(array_type(_int, 2), _pair, _int, _int, _positions, _numbers, _wants),
    *(array_type(_float, 1), array_type(_float, 2), array_type(_float, 1)),
    *(_float[::1], _float[::1], types.int32[::1]),
    *(types.Array(_float, 5, "C"), types.Array(_float, 5, "C"), types.Array(types.int32, 4, "C")),
)


@inner(forceinline=True)
def gather(
    query: Float[np.ndarray, "batch kv_heads group query dim"],
    place: tuple[int, int, int, int],
    queries: int,
    scale: Any,
    rows: Float[np.ndarray, "rows dim"],
) -> None:
    """Copy the scaled queries of all heads of a block, one head after the other."""
    n, h, g, q = place
    for r in range(np.uintp(rows.shape[0])):
        for j in range(np.uintp(rows.shape[1])):
            rows[r, j] = query[n, h, g + r // queries, q + r % queries, j] * scale


@inner()
def visible(
    task: Int[np.ndarray, " 6"],
    positions: tuple[int, int, int],
    keys: int,
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
) -> tuple[int, int]:
    """Write the first key that each row can see by its position, and one past the last.

    Returns the range of keys that any row can see; `first` and `stop` count from its beginning.
    `positions` is how far a query sees ahead and back, and the position of the first key.
    """
    queries = task[LAST_ROW] - task[FIRST_ROW]
    ahead, back, first_key = positions
    lowest, highest = keys, 0
    for r in range(len(first)):
        position = task[FIRST_ROW] + r % queries - first_key
        end = min(max(position + ahead + 1, 0), keys)
        begin = min(max(position - back, 0), end)
        first[r], stop[r] = begin, end
        lowest, highest = min(lowest, begin), max(highest, end)
    for r in range(len(first)):
        first[r] -= lowest
        stop[r] -= lowest
    return lowest, max(highest, lowest)


@inner()
def _survey_block(
    scaled: Float[np.ndarray, "rows dim"],
    key: Float[np.ndarray, "keys dim"],
    bias: Float[np.ndarray, "batch kv_heads group query key"],
    mask: Bool[np.ndarray, "batch kv_heads group query key"],
    place: tuple[int, int, int, int, int],
    queries: int,
    tile: int,
    numbers: tuple[Float32, Float32, Float32],
    wants: tuple[bool, bool, bool],
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
    memory: Float[np.ndarray, " size"],
    known: Float[np.ndarray, "9 rows"],
    count: Int[np.ndarray, " rows"],
) -> None:
    """Write the logits of a block in bits into `memory`, tile by tile, and what each row sums to.

    Unless the logits are to be kept, all tiles use the same memory.
    """
    _, softcap, lowest = numbers
    keep, entropy, smallest = wants
    rows, all_keys = known.shape[1], key.shape[0]
    masked = bias.size > 0 or mask.size > 0
    for r in range(rows):
        known[MAXIMUM, r], known[MINIMUM, r] = -np.inf, np.inf
        known[TOTAL, r], known[MOMENT, r], known[SQUARED, r] = Float32(0), Float32(0), Float32(0)
        count[r] = np.int32(0)
    for at in range(0, all_keys, tile):
        wide = min(tile, all_keys - at)
        begins = rows * at if keep else 0
        logits = memory[begins : begins + rows * wide].reshape(rows, wide)
        multiply(scaled, key[at : at + wide], logits)
        if softcap > 0:
            apply_softcap(logits, softcap)
        n, h, g, q, k = place
        if bias.size > 0:
            add_bias(logits, bias, (n, h, g, q, k + at), queries, lowest)
        if mask.size > 0:
            apply_mask(logits, mask, (n, h, g, q, k + at), queries)
        for r in range(np.uintp(rows)):
            begin, end = max(first[r] - at, 0), min(stop[r] - at, wide)
            if begin < end:
                if masked or smallest:
                    lowest_logit, visible = find_smallest(logits, r, begin, end)
                    known[MINIMUM, r] = min(known[MINIMUM, r], lowest_logit)
                    count[r] += visible if masked else end - begin
                else:
                    count[r] += end - begin
                if entropy:
                    update_sums(logits, r, begin, end, known)
                else:
                    known[MAXIMUM, r] = maximum(
                        known[MAXIMUM, r], find_largest(logits, r, begin, end)
                    )
    for r in range(rows):
        total = max(known[TOTAL, r], Float32(1))  # at least 1, except for 0 in a row without keys
        total = total if known[TOTAL, r] == known[TOTAL, r] else known[TOTAL, r]
        known[TOTAL, r] = total
        log_total, mean = Float32(math.log(total)), Float32(LOG_2) * known[MOMENT, r] / total
        known[ENTROPY, r] = log_total - mean
        variance = Float32(LOG_2 * LOG_2) * known[SQUARED, r] / total - mean * mean
        known[VARENTROPY, r] = Float32(0) if variance < 0 else variance  # NaN stays NaN


@inner(forceinline=True)
def _reach_target(entropy: Any, varentropy: Any, target: Any, largest: Any) -> Any:
    """Return the inverse temperature of `TargetEntropy`."""
    excess = entropy - target
    if excess != excess or varentropy != varentropy:
        return Float32(np.nan)
    if excess <= 0 or varentropy <= 0:
        return Float32(1)
    if excess >= (largest * largest - Float32(1)) / Float32(2) * varentropy:
        return largest
    return Float32(math.sqrt(Float32(1) + Float32(2) * excess / varentropy))


@inner()
def _apply_table(
    coefficients: Float[np.ndarray, " terms"],
    peaks: Float[np.ndarray, "peaks 2"],
    target: Float[np.ndarray, " numbers"],
    known: Float[np.ndarray, "9 rows"],
) -> None:
    """Write the inverse temperature of each row, as `policy_table.Table` says."""
    if target.size > 0:
        for r in range(known.shape[1]):
            known[FACTOR, r] = _reach_target(
                known[ENTROPY, r], known[VARENTROPY, r], target[0], target[1]
            )
        return
    threshold, floor = coefficients[0], coefficients[1]
    for r in range(known.shape[1]):
        entropy = known[ENTROPY, r]
        factor = coefficients[2]
        for term in range(3, len(coefficients)):
            factor = factor * entropy + coefficients[term]
        factor = floor if factor < floor else factor
        factor = Float32(1) if entropy <= threshold else factor
        for peak in range(peaks.shape[0]):
            if entropy > peaks[peak, 0] and factor < peaks[peak, 1]:
                factor = peaks[peak, 1]
        known[FACTOR, r] = factor


@inner()
def _weigh_block(
    value: Float[np.ndarray, "keys value_dim"],
    tile: int,
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
    memory: Float[np.ndarray, " size"],
    known: Float[np.ndarray, "9 rows"],
    mean: Float[np.ndarray, "rows value_dim"],
    part: Float[np.ndarray, "rows value_dim"],
    total: Float[np.ndarray, " rows"],
) -> None:
    """Write the sum of the values, weighted by the logits in `memory`, which become weights.

    `total` is the sum of the weights.
    """
    rows, all_keys, dim = known.shape[1], value.shape[0], value.shape[1]
    for r in range(np.uintp(rows)):
        total[r] = Float32(0)
        for j in range(np.uintp(dim)):
            mean[r, j] = Float32(0)
    for at in range(0, all_keys, tile):
        wide = min(tile, all_keys - at)
        logits = memory[rows * at : rows * (at + wide)].reshape(rows, wide)
        weigh_tile(logits, at, first, stop, known[MAXIMUM], known[FACTOR], total)
        values = value[at : at + wide]
        if rows <= FEW_ROWS:
            add_few(logits, values, mean)
            continue
        np.dot(logits, values, part)
        # Loops, because numba takes seconds to compile the same in array notation.
        for r in range(np.uintp(rows)):
            for j in range(np.uintp(dim)):
                mean[r, j] += part[r, j]


@inner()
def _store_output(
    mean: Float[np.ndarray, "rows value_dim"],
    total: Float[np.ndarray, " rows"],
    known: Float[np.ndarray, "9 rows"],
    sinks: Float[np.ndarray, "kv_heads group"],
    place: tuple[int, int, int, int, int],
    queries: int,
    output: Float[np.ndarray, "batch kv_heads group query value_dim"],
) -> bool:
    """Write the means; return whether they are finite.

    A sink is a weight without a value: exp(sink - factor * maximum), relative to the top key's.
    """
    finite = True
    n, h, g, q, _ = place
    for r in range(len(total)):
        group = g + r // queries
        whole = total[r]
        if sinks.size > 0:
            top = min(max(Float32(LOG_2) * known[MAXIMUM, r], -LARGEST), LARGEST)
            whole += Float32(math.exp(sinks[h, group] - known[FACTOR, r] * top))
        known[MASS, r] = whole
        share = Float32(1) / whole if whole != 0 else Float32(1)
        row = output[n, h, group, q + r % queries]
        for j in range(np.uintp(mean.shape[1])):
            row[j] = mean[r, j] * share
            finite &= row[j] - row[j] == Float32(0)
    return finite


@inner()
def _store_statistics(
    known: Float[np.ndarray, "9 rows"],
    count: Int[np.ndarray, " rows"],
    place: tuple[int, int, int, int, int],
    queries: int,
    numbers: Float[np.ndarray, "7 batch kv_heads group query"],
    counts: Int[np.ndarray, "batch kv_heads group query"],
) -> None:
    """Write entropy, log-sum-exp, factor, maximum and minimum of each row, in nats, its mass (the
    sum of the sharpened weights, relative to the top key's) and its varentropy.
    """
    n, h, g, q, _ = place
    for r in range(len(count)):
        group, query = g + r // queries, q + r % queries
        top = Float32(LOG_2) * known[MAXIMUM, r]
        numbers[0, n, h, group, query] = known[ENTROPY, r]
        numbers[1, n, h, group, query] = top + Float32(math.log(known[TOTAL, r]))
        numbers[2, n, h, group, query] = known[FACTOR, r]
        numbers[3, n, h, group, query] = top
        numbers[4, n, h, group, query] = Float32(LOG_2) * known[MINIMUM, r]
        numbers[5, n, h, group, query] = known[MASS, r]
        numbers[6, n, h, group, query] = known[VARENTROPY, r]
        counts[n, h, group, query] = count[r]


@outer(ATTEND)
def attend_tasks(
    query: Float[np.ndarray, "batch kv_heads group query dim"],
    key: Float[np.ndarray, "batch kv_heads key dim"],
    value: Float[np.ndarray, "batch kv_heads key value_dim"],
    bias: Float[np.ndarray, "batch kv_heads group query key"],
    mask: Bool[np.ndarray, "batch kv_heads group query key"],
    sinks: Float[np.ndarray, "kv_heads group"],
    tasks: Int[np.ndarray, "tasks 6"],
    which: tuple[int, int],
    stages: int,
    tile: int,
    positions: tuple[int, int, int],
    numbers: tuple[Float32, Float32, Float32],
    wants: tuple[bool, bool, bool],
    coefficients: Float[np.ndarray, " terms"],
    peaks: Float[np.ndarray, "peaks 2"],
    target: Float[np.ndarray, " numbers"],
    memory: Float[np.ndarray, " size"],
    rows_memory: Float[np.ndarray, " rows"],
    count_memory: Int[np.ndarray, " rows"],
    output: Float[np.ndarray, "batch kv_heads group query value_dim"],
    statistics: Float[np.ndarray, "7 batch kv_heads group query"],
    counts: Int[np.ndarray, "batch kv_heads group query"],
) -> bool:
    """Run these stages of a range of tasks; return whether the output is finite.

    What an earlier call has written for a task into the three kinds of memory is read by a later
    one, if there is one task. An empty bias, mask or sink and a softcap of 0 stand for none.
    `numbers` are scale, softcap and the bias that hides a key; `wants` says whether there are
    values, and whether entropy and statistics are needed.
    """
    finite = True
    heads, keys = key.shape[1], key.shape[2]
    keep = wants[0]
    for t in range(which[0], which[1]):
        task = tasks[t]
        queries = task[LAST_ROW] - task[FIRST_ROW]
        rows = queries * task[GROUP]
        first, stop = np.empty(rows, np.int64), np.empty(rows, np.int64)
        begins, ends = visible(task, positions, keys, first, stop)
        blocks, wide = task[BLOCKS], ends - begins
        known = rows_memory[: KNOWN * blocks * rows].reshape(blocks, KNOWN, rows)
        count = count_memory[: blocks * rows].reshape(blocks, rows)
        scaled = np.empty((rows, query.shape[4]), np.float32)
        mean = np.empty((rows, value.shape[3]), np.float32)
        part = np.empty((rows, value.shape[3]), np.float32)
        total = np.empty(rows, np.float32)
        # With all stages in one call a block's logits are in the cache when they are weighed.
        for b in range(blocks):
            n, h = (task[FIRST_BLOCK] + b) // heads, (task[FIRST_BLOCK] + b) % heads
            place = n, h, task[FIRST_GROUP], task[FIRST_ROW], begins
            own = memory[rows * wide * b :] if stages != ALL_STAGES else memory
            if stages != WEIGH:
                gather(query, place[:4], queries, numbers[0], scaled)
                _survey_block(
                    *(scaled, key[n, h, begins:ends], bias, mask, place, queries, tile),
                    *(numbers, wants, first, stop, own, known[b], count[b]),
                )
            if stages == ALL_STAGES:
                _apply_table(coefficients, peaks, target, known[b])
            if stages != SURVEY:
                if keep:
                    values = value[n, h, begins:ends]
                    _weigh_block(values, tile, first, stop, own, known[b], mean, part, total)
                    finite &= _store_output(mean, total, known[b], sinks, place, queries, output)
                if wants[2]:
                    _store_statistics(known[b], count[b], place, queries, statistics, counts)
    return finite
