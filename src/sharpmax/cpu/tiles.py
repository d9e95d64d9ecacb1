"""Operations of a kernel on one tile: the logits of some query rows and a few hundred keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sharpmax.cpu.arithmetic import (
    ALL_BUT_SIGN,
    BITS,
    FUSED,
    LOWEST,
    SUMS,
    Float32,
    exp2,
    from_bits,
    inner,
    maximum,
    ordered,
    tanh,
)
from sharpmax.ops import _rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

VANISHES = Float32(_rows.VANISHES)
FEW_ROWS = 4
"""Up to this many rows, products are plain loops, which read keys at the speed of memory. A matrix
product would copy the keys first, and the BLAS's matrix-vector product took up to 2.6 times as
long."""


@inner(fastmath=SUMS)
def multiply(
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
def add_few(
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
def apply_softcap(logits: Float[np.ndarray, "rows keys"], size: Any) -> None:
    """Replace each logit by size * tanh(logit)."""
    flat = logits.reshape(-1)
    for j in range(len(flat)):
        flat[j] = size * tanh(flat[j])


@inner(fastmath=FUSED)
def add_bias(
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
def apply_mask(
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
def find_largest(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> Any:
    """Return the largest logit of a part of row r; NaN if there are only NaN and -inf."""
    hidden = ordered(Float32(-np.inf))
    largest = hidden
    for j in range(np.uintp(begin), np.uintp(end)):
        largest = max(largest, ordered(logits[r, j]))
    if largest == hidden:  # a NaN with a minus sign is ordered below -inf
        for j in range(np.uintp(begin), np.uintp(end)):
            if logits[r, j] != logits[r, j]:
                return logits[r, j]
    return from_bits(largest ^ ((largest >> 31) & ALL_BUT_SIGN))


@inner(forceinline=True)
def find_smallest(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int) -> Any:
    """Return the smallest logit above -inf, which is hidden, and the number of such logits."""
    hidden, smallest = ordered(Float32(-np.inf)), ordered(Float32(np.inf))
    count = np.int32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        o = ordered(logits[r, j])
        smallest = min(smallest, ALL_BUT_SIGN if o <= hidden else o)
        count += np.int32(0) if o == hidden else np.int32(1)
    return from_bits(smallest ^ ((smallest >> 31) & ALL_BUT_SIGN)), count


@inner(fastmath=SUMS)
def _sums(logits: Float[np.ndarray, "rows keys"], r: int, begin: int, end: int, top: Any) -> Any:
    """Return the sums of 2**o, o * 2**o and o**2 * 2**o, with o = logit - top."""
    total, moment, squared = Float32(0), Float32(0), Float32(0)
    for j in range(np.uintp(begin), np.uintp(end)):
        offset = logits[r, j] - top
        e = exp2(offset)
        total += e
        # A weight of 0 may have an offset of -inf, and their product would be NaN.
        product = e * (LOWEST if offset < LOWEST else offset)
        moment += product
        squared += product * (LOWEST if offset < LOWEST else offset)
    return total, moment, squared


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
def update_sums(
    logits: Float[np.ndarray, "rows keys"],
    r: int,
    begin: int,
    end: int,
    sums: Float[np.ndarray, "5 rows"],
) -> None:
    """Add a part of row r to the row's maximum, sum and first and second moment."""
    before, total, moment, squared = sums[0, r], sums[2, r], sums[3, r], sums[4, r]
    top = maximum(before, find_largest(logits, r, begin, end))
    sums[0, r] = top
    if top == -np.inf:  # no visible key so far
        return
    if top == np.inf:  # infinite logits share the whole mass
        total = total if before == np.inf else Float32(0)
        sums[2, r] = total + _count_infinities(logits, r, begin, end)
        sums[3, r], sums[4, r] = Float32(0), Float32(0)
        return
    if total > 0 and top > before:  # the sums so far are relative to the old maximum
        fall = before - top
        shrunk, fall = exp2(fall), max(fall, LOWEST)
        squared = shrunk * (squared + fall * (2 * moment + fall * total))
        moment = shrunk * (moment + fall * total)
        total *= shrunk
    more = _sums(logits, r, begin, end, top)
    sums[2, r], sums[3, r], sums[4, r] = total + more[0], moment + more[1], squared + more[2]


@inner(forceinline=True)
def weigh_tile(
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
            # So that the weight of a hidden key is 0.
            clamped = VANISHES if factor[r] < VANISHES else factor[r]
            total[r] += _weights(logits, r, begin, end, top[r], clamped)
