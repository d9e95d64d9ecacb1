"""What is computed of a block of query rows, compiled by numba for the CPU at hand.

Queries are multiplied by keys once: a block's logits are kept, in tiles, from there to the product
with the values, so that a second exponential costs little; the temperature of a row is found
between the two. Products are those of the BLAS that SciPy brings; each touches a tile that the
nearest cache still holds. All of it is in one file, since numba's cache notices changes of the file
of `survey` and `weigh` alone, and would go on with what it had compiled of another.

Logits are in bits, a weight is 2**(factor * (logit - top)): no underflow is slow in base 2.
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
"""What lets a sum run in lanes. Not `nnan` or `ninf`: both may come, and mean something."""
FUSED = {"contract"}

Float32 = np.float32
Function = TypeVar("Function", bound=Callable[..., Any])


def inner(**options: Any) -> Callable[[Function], Function]:
    """Compiles what only compiled code calls: what others would call it by takes as long as it."""
    compiled: Any = njit(**options, no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
    return cast(Callable[[Function], Function], compiled)


def outer(signature: Any) -> Callable[[Function], Function]:
    """Compiles what Python calls, for these types alone, or reads what was kept of it."""
    compiled: Any = njit(signature, nogil=True, cache=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
    return cast(Callable[[Function], Function], compiled)


def _array(kind: Any, axes: int, layout: Any = "C") -> Any:
    """The type of an array that is only read, so that any array of the kind will do."""
    return types.Array(kind, axes, layout, readonly=True)


_float, _int = types.float32, types.int64
_pair: Any = types.UniTuple(_int, 2)  # type: ignore[no-untyped-call]
_any, _rows = _array(_float, 5, "A"), _array(_int, 1)
_place = (_array(_int, 2), _int, _pair, _pair, _float[::1], _int, _rows, _rows)
# Given here, or each layout in memory would be compiled for anew.
SURVEY = types.void(
    *(_any, _array(_float, 4), *_place, _float, _float),
    *(_any, _float, _array(types.boolean, 5, "A"), *[types.boolean] * 3),
    *(_float[:, :, ::1], types.int32[:, ::1]),
)
WEIGH = types.void(
    _array(_float, 4), *_place, *[_array(_float, 2)] * 3, types.Array(_float, 5, "C")
)

# 2**f for f in [-0.5, 0.5], interpolated at Chebyshev's points; off by 0.97 units in the last place
# with the rounding of float32, see the tests.
C0, C1, C2, C3, C4, C5, C6 = (
    Float32(coefficient)
    for coefficient in np.polynomial.Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5])
    .convert(kind=np.polynomial.Polynomial)
    .coef
)
LOWEST = Float32(-127.0)
"""Here, and half above, the power is 0: float32 would have subnormal numbers, which are slow."""
ONE = np.int32(127 << 23)
"""The bits of 1.0: an integer n in the exponent's place makes them those of 2**n."""
ROUNDS = Float32(1.5 * 2**23)
"""Added to a number it leaves the nearest integer in the last bits."""
ALL_BUT_SIGN = np.int32(0x7FFFFFFF)
FEW = 4
"""Rows up to which products are plain loops, which read keys as fast as memory gives them: a matrix
product would first copy them, and the BLAS's product with a vector took up to 2.6 times as long."""


def _reinterpret(source: Any, target: Any, kind: ir.Type) -> Any:
    """A function that takes the bits of a number for those of another type."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], kind)

    def typed(typing: Any, number: Any) -> Any:
        return target(source), build

    return intrinsic(typed)


_bits: Any = _reinterpret(types.float32, types.int32, ir.IntType(32))
_number: Any = _reinterpret(types.int32, types.float32, ir.FloatType())


@njit(fastmath=FUSED, forceinline=True)
def exp2(x: Any) -> Any:
    """2**x for x up to 0, to 1 unit in the last place; NaN stays NaN.

    By hand, since a call of the C library's would keep a loop from running in lanes.
    """
    clipped = LOWEST if x < LOWEST else x
    shifted = clipped + ROUNDS
    f = clipped - (shifted - ROUNDS)
    p = C6
    p = p * f + C5
    p = p * f + C4
    p = p * f + C3
    p = p * f + C2
    p = p * f + C1
    p = p * f + C0
    return p * _number((_bits(shifted) << 23) + ONE)


@njit(fastmath=FUSED, forceinline=True)
def tanh(x: Any) -> Any:
    """To 2 units in the last place of 1; near 0, where (1 - e) / (1 + e) would lose digits, by its
    series.
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
    """An integer that is larger where the number is: their maximum runs in lanes, that of floats
    does not, because of NaN.
    """
    b = _bits(x)
    return b ^ ((b >> 31) & ALL_BUT_SIGN)


@inner(fastmath=SUMS)
def _multiply(
    query: Float[np.ndarray, "rows dim"],
    key: Float[np.ndarray, "keys dim"],
    logits: Float[np.ndarray, "rows keys"],
) -> None:
    """logits = query keyᵀ."""
    if query.shape[0] > FEW:
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
    """mean += weights value."""
    for r in range(np.uintp(weights.shape[0])):
        for k in range(np.uintp(weights.shape[1])):
            weight = weights[r, k]
            for j in range(np.uintp(mean.shape[1])):
                mean[r, j] += weight * value[k, j]


@inner(fastmath=FUSED)
def _cap(logits: Float[np.ndarray, "rows keys"], size: Any) -> None:
    """size * tanh(logit)."""
    flat = logits.reshape(-1)
    for j in range(len(flat)):
        flat[j] = size * tanh(flat[j])


@inner(fastmath=FUSED)
def _add(
    logits: Float[np.ndarray, "rows keys"],
    bias: Float[np.ndarray, "batch kv_heads group query key"],
    place: tuple[int, int, int, int, int],
    queries: int,
    lowest: Any,
) -> None:
    """Add a bias in nats, from this place on; `lowest` or less hides the key."""
    n, h, g, q, k = place
    for r in range(logits.shape[0]):
        group, query = g + r // queries, q + r % queries
        for j in range(logits.shape[1]):
            more = bias[n, h, group, query, k + j]
            hidden = more <= lowest
            logits[r, j] = -np.inf if hidden else logits[r, j] + more * Float32(BITS)


@inner()
def _hide(
    logits: Float[np.ndarray, "rows keys"],
    mask: Bool[np.ndarray, "batch kv_heads group query key"],
    place: tuple[int, int, int, int, int],
    queries: int,
) -> None:
    """-inf where the mask, from this place on, is False; also over NaN."""
    n, h, g, q, k = place
    for r in range(logits.shape[0]):
        group, query = g + r // queries, q + r % queries
        for j in range(logits.shape[1]):
            logits[r, j] = logits[r, j] if mask[n, h, group, query, k + j] else -np.inf


@inner(forceinline=True)
def _largest(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> Any:
    largest = _ordered(Float32(-np.inf))
    for j in range(np.uintp(begin), np.uintp(end)):
        largest = max(largest, _ordered(logits[r, j]))
    return _number(largest ^ ((largest >> 31) & ALL_BUT_SIGN))


@inner(forceinline=True)
def _extent(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> Any:
    """The smallest logit but for -inf, which is hidden, and how many are not."""
    hidden, smallest = _ordered(Float32(-np.inf)), _ordered(Float32(np.inf))
    count = np.int32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        o = _ordered(logits[r, j])
        smallest = min(smallest, ALL_BUT_SIGN if o <= hidden else o)
        count += np.int32(0) if o == hidden else np.int32(1)
    return _number(smallest ^ ((smallest >> 31) & ALL_BUT_SIGN)), count


@inner(fastmath=SUMS)
def _sums(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int, top: Any) -> Any:
    """Of 2**(logit - top), and of that times (logit - top)."""
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
    """2**(factor * (logit - top)), over the logits; their sum."""
    total = Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        e = exp2((logits[r, j] - top) * factor)
        logits[r, j] = e
        total += e
    return total


@inner()
def _shared(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> Any:
    """1 for each +inf and 0 for the rest, over the logits; their sum. NaN stays."""
    total = Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        infinite = Float32(1) if logits[r, j] == np.inf else Float32(0)
        logits[r, j] = infinite if logits[r, j] == logits[r, j] else logits[r, j]
        total += logits[r, j]
    return total


@inner(forceinline=True)
def _infinities(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> Any:
    count = Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        x = logits[r, j]
        count += Float32(1) if x == np.inf else (x if x != x else Float32(0))
    return count


@inner(forceinline=True)
def _higher(one: Any, other: Any) -> Any:
    """The larger one; NaN if either is."""
    return one if one >= other or one != one else other


@inner(forceinline=True)
def _learn(
    logits: Float[np.ndarray, "rows keys"],
    r: int,
    begin: int,
    end: int,
    known: Float[np.ndarray, "four rows"],
) -> None:
    """What this part of a row adds to its top, sum and moment."""
    before, total, moment = known[0, r], known[2, r], known[3, r]
    top = _higher(before, _largest(logits, r, begin, end))
    known[0, r] = top
    if top == -np.inf:  # nothing was seen yet
        return
    if top == np.inf:  # infinite logits share all of the mass
        total = total if before == np.inf else Float32(0)
        known[2, r], known[3, r] = total + _infinities(logits, r, begin, end), Float32(0)
        return
    if total > 0 and top > before:  # what was summed was below another top
        fall = before - top
        shrunk = exp2(fall)
        moment = shrunk * (moment + max(fall, LOWEST) * total)
        total *= shrunk
    more = _sums(logits, r, begin, end, top)
    known[2, r], known[3, r] = total + more[0], moment + more[1]


@inner(forceinline=True)
def _gather(
    query: Float[np.ndarray, "batch kv_heads group query dim"],
    place: tuple[int, int, int, int],
    queries: int,
    scale: Any,
    rows: Float[np.ndarray, "rows dim"],
) -> None:
    """The scaled queries of all heads of a block, one after the other."""
    n, h, g, q = place
    for r in range(np.uintp(rows.shape[0])):
        for j in range(np.uintp(rows.shape[1])):
            rows[r, j] = query[n, h, g + r // queries, q + r % queries, j] * scale


@outer(SURVEY)
def survey(
    query: Float[np.ndarray, "batch kv_heads group query dim"],
    key: Float[np.ndarray, "batch kv_heads key dim"],
    blocks: Int[np.ndarray, "blocks three"],
    groups: int,
    queries: tuple[int, int],
    keys: tuple[int, int],
    space: Float[np.ndarray, " blocks*rows*keys"],
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
    known: Float[np.ndarray, "four blocks rows"],
    count: Int[np.ndarray, "blocks rows"],
) -> None:
    """Logits in bits into `space`, block after block, tile after tile, and what is known of each
    row; where they need not be kept, all tiles use the same space. A block is `groups` query heads
    of a key head, from the three places (batch, key head, first query head). `first` and `stop`
    count from the first of the keys. No softcap is 0, no bias or mask an empty one.
    """
    rows, many, all_keys = known.shape[2], queries[1] - queries[0], keys[1] - keys[0]
    masked = bias.size > 0 or mask.size > 0
    scaled = np.empty((rows, key.shape[3]), np.float32)
    for b in range(len(blocks)):
        n, h, g = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        _gather(query, (n, h, g, queries[0]), many, scale, scaled)
        for at in range(0, all_keys, tile):
            wide = min(tile, all_keys - at)
            begins = rows * (b * all_keys + at) if keep else 0
            logits = space[begins : begins + rows * wide].reshape(rows, wide)
            place = n, h, g, queries[0], keys[0] + at
            _multiply(scaled, key[n, h, keys[0] + at : keys[0] + at + wide], logits)
            if softcap > 0:
                _cap(logits, softcap)
            if bias.size > 0:
                _add(logits, bias, place, many, lowest)
            if mask.size > 0:
                _hide(logits, mask, place, many)
            for r in range(np.uintp(rows)):
                begin, end = max(first[r] - at, 0), min(stop[r] - at, wide)
                if begin < end:
                    if masked or smallest:
                        its, visible = _extent(logits, r, begin, end)
                        known[1, b, r] = min(known[1, b, r], its)
                        count[b, r] += visible if masked else end - begin
                    else:
                        count[b, r] += end - begin
                    if entropy:
                        _learn(logits, r, begin, end, known[:, b])
                    else:
                        known[0, b, r] = _higher(known[0, b, r], _largest(logits, r, begin, end))


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
    """Weights over the logits, 0 where nothing is seen; their sums are added to `total`."""
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
            total[r] += _shared(logits, r, begin, end)
        else:
            total[r] += _weights(logits, r, begin, end, top[r], factor[r])


@outer(WEIGH)
def weigh(
    value: Float[np.ndarray, "batch kv_heads key value_dim"],
    blocks: Int[np.ndarray, "blocks three"],
    groups: int,
    queries: tuple[int, int],
    keys: tuple[int, int],
    space: Float[np.ndarray, " blocks*rows*keys"],
    tile: int,
    first: Int[np.ndarray, " rows"],
    stop: Int[np.ndarray, " rows"],
    top: Float[np.ndarray, "blocks rows"],
    factor: Float[np.ndarray, "blocks rows"],
    beside: Float[np.ndarray, "blocks rows"],
    output: Float[np.ndarray, "batch kv_heads group query value_dim"],
) -> None:
    """Weights over the logits in `space`, and the mean of the values that they weigh; `beside` is
    the weight of what has no value.
    """
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
            logits = space[begins : begins + rows * wide].reshape(rows, wide)
            _weights_of_tile(logits, at, first, stop, top[b], factor[b], total)
            values = value[n, h, keys[0] + at : keys[0] + at + wide]
            if rows <= FEW:
                _add_few(logits, values, mean)
                continue
            np.dot(logits, values, part)
            # Loops, since numba takes seconds to compile the same in array notation.
            for r in range(np.uintp(rows)):
                for j in range(np.uintp(dim)):
                    mean[r, j] += part[r, j]
        for r in range(np.uintp(rows)):
            whole = total[r] + beside[b, r]
            share = Float32(1) / whole if whole != 0 else Float32(1)
            its = output[n, h, g + r // count, queries[0] + r % count]
            for j in range(np.uintp(dim)):
                its[j] = mean[r, j] * share
