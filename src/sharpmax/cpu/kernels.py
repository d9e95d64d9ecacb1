"""The arithmetic of one block of query rows, compiled by numba.

Queries are multiplied by keys once. A block's logits are kept, in tiles, until the product with the
values, so that the second exponential costs little; the inverse temperature of a row is computed
between the two. `survey` is the first half, `weigh` the second. Products are those of SciPy's BLAS,
on tiles that the nearest cache still holds.

All compiled code is in this file on purpose: numba's cache notices only changes in the file of
`survey` and `weigh`, and would keep an old version of a function from another file.

Logits are in bits, and a weight is 2**(factor * (logit - maximum)): underflow is not slow in base
2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

LOG_2 = math.log(2)
BITS = 1 / LOG_2
"""One nat in bits."""

SUMS = {"reassoc", "nsz", "contract"}
"""Flags that let a sum be vectorised. Not `nnan` or `ninf`: NaN and infinities have a meaning."""
FUSED = {"contract"}

Float32 = np.float32
Function = TypeVar("Function", bound=Callable[..., Any])


def inner(**options: Any) -> Callable[[Function], Function]:
    """Return `njit` without Python wrappers, which would double the compile time."""
    compiled: Any = njit(**options, no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
    return cast(Callable[[Function], Function], compiled)


def outer(signature: Any) -> Callable[[Function], Function]:
    """Return `njit` for a function that Python calls, for these types only, with a cache."""
    compiled: Any = njit(signature, nogil=True, cache=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
    return cast(Callable[[Function], Function], compiled)


def _array(kind: Any, axes: int, layout: Any = "C") -> Any:
    """Return the type of a read-only array, which accepts writable arrays too."""
    return types.Array(kind, axes, layout, readonly=True)


_float, _int = types.float32, types.int64
_pair: Any = types.UniTuple(_int, 2)  # type: ignore[no-untyped-call]
_any, _rows = _array(_float, 5, "A"), _array(_int, 1)
_place = (_array(_int, 2), _int, _pair, _pair, _float[::1], _int, _rows, _rows)
# Stated here, because numba would otherwise compile again for each layout in memory.
SURVEY = types.void(
    *(_any, _array(_float, 4), *_place, _float, _float),
    *(_any, _float, _array(types.boolean, 5, "A"), *[types.boolean] * 3),
    *(_float[:, :, ::1], types.int32[:, ::1]),
)
WEIGH = types.boolean(
    _array(_float, 4), *_place, *[_array(_float, 2)] * 3, types.Array(_float, 5, "C")
)

# 2**f for f in [-0.5, 0.5], interpolated at Chebyshev's points. With the rounding of float32 the
# error is at most 0.97 units in the last place, see the tests.
C0, C1, C2, C3, C4, C5, C6 = (
    Float32(coefficient)
    for coefficient in np.polynomial.Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5])
    .convert(kind=np.polynomial.Polynomial)
    .coef
)
LOWEST = Float32(-127.0)
"""From half above this on, the power is 0: subnormal numbers would be slow."""
ONE = np.int32(127 << 23)
"""The bits of 1.0; adding n to the exponent makes them those of 2**n."""
ROUNDING = Float32(1.5 * 2**23)
"""Added to a number, it leaves the nearest integer in the last bits."""
ALL_BUT_SIGN = np.int32(0x7FFFFFFF)
FEW_ROWS = 4
"""Up to this many rows, products are plain loops, which read keys at the speed of memory. A matrix
product would copy the keys first, and the BLAS's matrix-vector product took up to 2.6 times as
long."""


def _reinterpret(source: Any, target: Any, kind: ir.Type) -> Any:
    """Return a function that reinterprets the bits of a number as another type."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], kind)

    def typed(typing: Any, number: Any) -> Any:
        return target(source), build

    return intrinsic(typed)


_to_bits: Any = _reinterpret(types.float32, types.int32, ir.IntType(32))
_from_bits: Any = _reinterpret(types.int32, types.float32, ir.FloatType())


@njit(fastmath=FUSED, forceinline=True)
def exp2(x: Any) -> Any:
    """Return 2**x for x <= 0, to 1 unit in the last place; NaN stays NaN.

    A call of the C library would prevent vectorisation.
    """
    clipped = LOWEST if x < LOWEST else x
    shifted = clipped + ROUNDING
    f = clipped - (shifted - ROUNDING)
    p = C6
    p = p * f + C5
    p = p * f + C4
    p = p * f + C3
    p = p * f + C2
    p = p * f + C1
    p = p * f + C0
    return p * _from_bits((_to_bits(shifted) << 23) + ONE)


@njit(fastmath=FUSED, forceinline=True)
def tanh(x: Any) -> Any:
    """Return tanh(x), to 2 units in the last place of 1.

    Near 0, where (1 - e) / (1 + e) would lose digits, it is computed by its series.
    """
    size = abs(x)
    e = exp2(Float32(-2 * BITS) * size)
    far = (Float32(1) - e) / (Float32(1) + e)
    s = x * x
    p = Float32(62 / 2835)
    p = p * s - Float32(17 / 315)
    p = p * s + Float32(2 / 15)
    p = p * s - Float32(1 / 3)
    near = x + x * s * p
    return near if size < Float32(0.25) else (far if x > 0 else -far)


@inner(forceinline=True)
def _ordered(x: Any) -> Any:
    """Return an integer with the order of the number.

    A maximum of integers is vectorised; one of floats is not, because of NaN.
    """
    b = _to_bits(x)
    return b ^ ((b >> 31) & ALL_BUT_SIGN)


@inner(fastmath=SUMS)
def _multiply(
    query: Float[np.ndarray, "rows dim"],
    key: Float[np.ndarray, "keys dim"],
    logits: Float[np.ndarray, "rows keys"],
) -> None:
    """Write logits = query keyᵀ."""
    if query.shape[0] > FEW_ROWS:
        np.dot(query, key.T, logits)
        return
    for r in range(np.uintp(query.shape[0])):
        for k in range(np.uintp(key.shape[0])):
            logit = Float32(0)
            for j in range(np.uintp(key.shape[1])):
                logit += key[k, j] * query[r, j]
            logits[r, k] = logit


@inner(fastmath=FUSED)
def _add_few(
    weights: Float[np.ndarray, "rows keys"],
    value: Float[np.ndarray, "keys dim"],
    mean: Float[np.ndarray, "rows dim"],
) -> None:
    """Add weights value to mean."""
    for r in range(np.uintp(weights.shape[0])):
        for k in range(np.uintp(weights.shape[1])):
            weight = weights[r, k]
            for j in range(np.uintp(mean.shape[1])):
                mean[r, j] += weight * value[k, j]


@inner(fastmath=FUSED)
def _apply_softcap(logits: Float[np.ndarray, "rows keys"], size: Any) -> None:
    """Replace each logit by size * tanh(logit)."""
    flat = logits.reshape(-1)
    for j in range(len(flat)):
        flat[j] = size * tanh(flat[j])


@inner(fastmath=FUSED)
def _add_bias(
    logits: Float[np.ndarray, "rows keys"],
    bias: Float[np.ndarray, "batch kv_heads group query key"],
    place: tuple[int, int, int, int, int],
    queries: int,
    lowest: Any,
) -> None:
    """Add a bias in nats, read from this place on; `lowest` or less hides the key."""
    n, h, g, q, k = place
    for r in range(logits.shape[0]):
        group, query = g + r // queries, q + r % queries
        for j in range(logits.shape[1]):
            added = bias[n, h, group, query, k + j]
            hidden = added <= lowest
            logits[r, j] = -np.inf if hidden else logits[r, j] + added * Float32(BITS)


@inner()
def _apply_mask(
    logits: Float[np.ndarray, "rows keys"],
    mask: Bool[np.ndarray, "batch kv_heads group query key"],
    place: tuple[int, int, int, int, int],
    queries: int,
) -> None:
    """Write -inf where the mask, read from this place on, is False; also over NaN."""
    n, h, g, q, k = place
    for r in range(logits.shape[0]):
        group, query = g + r // queries, q + r % queries
        for j in range(logits.shape[1]):
            logits[r, j] = logits[r, j] if mask[n, h, group, query, k + j] else -np.inf


@inner(forceinline=True)
def _largest(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> Any:
    """Return the largest logit of a part of row r; NaN if there are only NaN and -inf."""
    hidden = _ordered(Float32(-np.inf))
    largest = hidden
    for j in range(np.uintp(begin), np.uintp(end)):
        largest = max(largest, _ordered(logits[r, j]))
    if largest == hidden:  # a NaN with a minus sign is ordered below -inf
        for j in range(np.uintp(begin), np.uintp(end)):
            if logits[r, j] != logits[r, j]:
                return logits[r, j]
    return _from_bits(largest ^ ((largest >> 31) & ALL_BUT_SIGN))


@inner(forceinline=True)
def _smallest_and_count(
    logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int
) -> Any:
    """Return the smallest logit above -inf, which is hidden, and the number of such logits."""
    hidden, smallest = _ordered(Float32(-np.inf)), _ordered(Float32(np.inf))
    count = np.int32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        o = _ordered(logits[r, j])
        smallest = min(smallest, ALL_BUT_SIGN if o <= hidden else o)
        count += np.int32(0) if o == hidden else np.int32(1)
    return _from_bits(smallest ^ ((smallest >> 31) & ALL_BUT_SIGN)), count


@inner(fastmath=SUMS)
def _sums(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int, top: Any) -> Any:
    """Return the sums of 2**(logit - top) and of (logit - top) * 2**(logit - top)."""
    total, moment = Float32(0), Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        offset = logits[r, j] - top
        e = exp2(offset)
        total += e
        # A weight of 0 may have an offset of -inf, and their product would be NaN.
        moment += e * (LOWEST if offset < LOWEST else offset)
    return total, moment


@inner(fastmath=SUMS)
def _weights(
    logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int, top: Any, factor: Any
) -> Any:
    """Replace the logits by 2**(factor * (logit - top)); return their sum."""
    total = Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        e = exp2((logits[r, j] - top) * factor)
        logits[r, j] = e
        total += e
    return total


@inner()
def _weights_at_infinity(
    logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int
) -> Any:
    """Replace +inf by 1 and other logits by 0; return their sum. NaN stays NaN."""
    total = Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        infinite = Float32(1) if logits[r, j] == np.inf else Float32(0)
        logits[r, j] = infinite if logits[r, j] == logits[r, j] else logits[r, j]
        total += logits[r, j]
    return total


@inner(forceinline=True)
def _count_infinities(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> Any:
    """Return how many logits are +inf; NaN if any is NaN."""
    count = Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        x = logits[r, j]
        count += Float32(1) if x == np.inf else (x if x != x else Float32(0))
    return count


@inner(forceinline=True)
def _maximum(a: Any, b: Any) -> Any:
    """Return the larger number; NaN if either is NaN."""
    return a if a >= b or a != a else b


@inner(forceinline=True)
def _update_sums(
    logits: Float[np.ndarray, "rows keys"],
    r: int,
    begin: int,
    end: int,
    sums: Float[np.ndarray, "4 rows"],
) -> None:
    """Add a part of row r to the row's maximum, sum and moment."""
    before, total, moment = sums[0, r], sums[2, r], sums[3, r]
    top = _maximum(before, _largest(logits, r, begin, end))
    sums[0, r] = top
    if top == -np.inf:  # no visible key so far
        return
    if top == np.inf:  # infinite logits share the whole mass
        total = total if before == np.inf else Float32(0)
        sums[2, r], sums[3, r] = total + _count_infinities(logits, r, begin, end), Float32(0)
        return
    if total > 0 and top > before:  # the sums so far are relative to the old maximum
        fall = before - top
        shrunk = exp2(fall)
        moment = shrunk * (moment + max(fall, LOWEST) * total)
        total *= shrunk
    more = _sums(logits, r, begin, end, top)
    sums[2, r], sums[3, r] = total + more[0], moment + more[1]


@inner(forceinline=True)
def _gather(
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


@outer(SURVEY)
def survey(
    query: Float[np.ndarray, "batch kv_heads group query dim"],
    key: Float[np.ndarray, "batch kv_heads key dim"],
    blocks: Int[np.ndarray, "blocks 3"],
    group: int,
    queries: tuple[int, int],
    keys: tuple[int, int],
    memory: Float[np.ndarray, " size"],
    tile: int,
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
    scale: Float32,
    softcap: Float32,
    bias: Float[np.ndarray, "batch kv_heads group query key"],
    lowest: Float32,
    mask: Bool[np.ndarray, "batch kv_heads group query key"],
    keep: bool,
    entropy: bool,
    smallest: bool,
    sums: Float[np.ndarray, "4 blocks rows"],
    count: Int[np.ndarray, "blocks rows"],
) -> None:
    """Write logits in bits into `memory`, block by block and tile by tile, and sums of each row.

    The sums are maximum, minimum, sum and moment; the minimum only if `smallest`, sum and moment
    only if `entropy`. Unless the logits are to be kept, all tiles use the same memory. A block is
    `group` query heads of a key head, from (batch, key head, first query head) in `blocks`. `first`
    and `stop` count from the first key of the task. A softcap of 0, an empty bias and an empty mask
    stand for none.
    """
    rows, block_queries = sums.shape[2], queries[1] - queries[0]
    all_keys = keys[1] - keys[0]
    masked = bias.size > 0 or mask.size > 0
    scaled = np.empty((rows, key.shape[3]), np.float32)
    for b in range(len(blocks)):
        n, h, g = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        _gather(query, (n, h, g, queries[0]), block_queries, scale, scaled)
        for at in range(0, all_keys, tile):
            wide = min(tile, all_keys - at)
            begins = rows * (b * all_keys + at) if keep else 0
            logits = memory[begins : begins + rows * wide].reshape(rows, wide)
            place = n, h, g, queries[0], keys[0] + at
            _multiply(scaled, key[n, h, keys[0] + at : keys[0] + at + wide], logits)
            if softcap > 0:
                _apply_softcap(logits, softcap)
            if bias.size > 0:
                _add_bias(logits, bias, place, block_queries, lowest)
            if mask.size > 0:
                _apply_mask(logits, mask, place, block_queries)
            for r in range(np.uintp(rows)):
                begin, end = max(first[r] - at, 0), min(stop[r] - at, wide)
                if begin < end:
                    if masked or smallest:
                        lowest_logit, visible = _smallest_and_count(logits, r, begin, end)
                        sums[1, b, r] = min(sums[1, b, r], lowest_logit)
                        count[b, r] += visible if masked else end - begin
                    else:
                        count[b, r] += end - begin
                    if entropy:
                        _update_sums(logits, r, begin, end, sums[:, b])
                    else:
                        sums[0, b, r] = _maximum(sums[0, b, r], _largest(logits, r, begin, end))


@inner(forceinline=True)
def _weights_of_tile(
    logits: Float[np.ndarray, "rows keys"],
    at: int,
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
    top: Float[np.ndarray, " rows"],
    factor: Float[np.ndarray, " rows"],
    total: Float[np.ndarray, " rows"],
) -> None:
    """Replace logits by weights, 0 where a key is hidden; add their sums to `total`."""
    wide = logits.shape[1]
    for r in range(np.uintp(len(top))):
        begin = min(max(first[r] - at, 0), wide)
        end = max(min(stop[r] - at, wide), begin)
        if top[r] == -np.inf:
            end = begin
        for j in range(np.uintp(begin)):
            logits[r, j] = Float32(0)
        for j in range(np.uintp(end), np.uintp(wide)):
            logits[r, j] = Float32(0)
        if top[r] == np.inf:
            total[r] += _weights_at_infinity(logits, r, begin, end)
        else:
            total[r] += _weights(logits, r, begin, end, top[r], factor[r])


@outer(WEIGH)
def weigh(
    value: Float[np.ndarray, "batch kv_heads key value_dim"],
    blocks: Int[np.ndarray, "blocks 3"],
    group: int,
    queries: tuple[int, int],
    keys: tuple[int, int],
    memory: Float[np.ndarray, " size"],
    tile: int,
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
    top: Float[np.ndarray, "blocks rows"],
    factor: Float[np.ndarray, "blocks rows"],
    sink: Float[np.ndarray, "blocks rows"],
    output: Float[np.ndarray, "batch kv_heads group query value_dim"],
) -> bool:
    """Write the output: the mean of the values, weighted by the logits in `memory`.

    The logits become weights. `sink` is a weight without a value, relative to the top key's.
    Returns whether the output is finite.
    """
    finite = True
    rows, all_keys, dim = top.shape[1], keys[1] - keys[0], value.shape[3]
    total = np.empty(rows, np.float32)
    mean, part = np.empty((rows, dim), np.float32), np.empty((rows, dim), np.float32)
    count = queries[1] - queries[0]
    for b in range(len(blocks)):
        n, h, g = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        for r in range(np.uintp(rows)):
            total[r] = Float32(0)
            for j in range(np.uintp(dim)):
                mean[r, j] = Float32(0)
        for at in range(0, all_keys, tile):
            wide = min(tile, all_keys - at)
            begins = rows * (b * all_keys + at)
            logits = memory[begins : begins + rows * wide].reshape(rows, wide)
            _weights_of_tile(logits, at, first, stop, top[b], factor[b], total)
            values = value[n, h, keys[0] + at : keys[0] + at + wide]
            if rows <= FEW_ROWS:
                _add_few(logits, values, mean)
                continue
            np.dot(logits, values, part)
            # Loops, because numba takes seconds to compile the same in array notation.
            for r in range(np.uintp(rows)):
                for j in range(np.uintp(dim)):
                    mean[r, j] += part[r, j]
        for r in range(np.uintp(rows)):
            whole = total[r] + sink[b, r]
            share = Float32(1) / whole if whole != 0 else Float32(1)
            row = output[n, h, g + r // count, queries[0] + r % count]
            for j in range(np.uintp(dim)):
                row[j] = mean[r, j] * share
                finite &= row[j] - row[j] == Float32(0)
    return finite
