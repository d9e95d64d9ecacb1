"""Solve for weights that are a power of the logit's distance from a threshold.

With z <= 0 the logit below its row's maximum and t the logarithm of the largest weight,

    p_i = exp(t + r_i),    r_i = log(1 + e z_i exp(-e t)) / e

(p_i = 0 where the logarithm is undefined), and t makes the sum 1. This covers three methods:

- e = alpha - 1: alpha-entmax, ((alpha - 1) z - tau)^(1 / e) with tau = -exp(e t);
- e = -1/q, of q z: Stieltjes, (lambda - z)^(-q) with lambda = exp(-t / q);
- e -> 0: softmax, without a division by 0.

Written in t, all roots lie in the bracket -log n <= t <= 0, and nothing overflows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.ops._rows import NOTHING, Rows

if TYPE_CHECKING:
    from jaxtyping import Float

MOST_STEPS = 300
"""A bound on the loop; half a dozen steps are usual."""

SMALL = 0.01
"""Below this, log(1 + w) / w is computed by its series; eight terms are exact to 1e-16."""

LARGEST = 69.0
"""-e t is limited to this before exp overflows. exp(-69) = 1e-30 below the top is no weight."""


def power_weights(rows: Rows, bend: Array | float) -> Float[Array, "..."]:
    """Compute the weights for e = `bend`, a number or one per row; NaN where that is NaN."""
    frozen = rows._replace(offset=_array.stop_gradient(rows.offset))
    constant = bend if isinstance(bend, float) else _array.stop_gradient(bend)
    top = _solve(frozen, constant)
    # One more Newton step, with gradients: it has that of the implicit function theorem.
    _, slope = _excess(frozen, constant, top)
    excess, _ = _excess(rows, bend, top)
    ratios, _ = _ratios(rows, bend, top - excess / slope)
    # Normalised exactly, whatever the last digits of the root are.
    weights = ratios / rows.nonzero(rows.sum(ratios))
    return weights if isinstance(bend, float) else rows.xp.where(bend == bend, weights, math.nan)


def _ratios(rows: Rows, bend: Array | float, top: Array) -> tuple[Array, Array]:
    """Return exp(r), the weights relative to the largest, and w = e z exp(-e t), per item."""
    xp = rows.xp
    counts = rows.offset > NOTHING
    lift = _array.exp(_array.clamp(-bend * top, -math.inf, LARGEST, xp), xp)
    distance = xp.where(counts, rows.offset, 0.0) * lift
    bent = bend * distance
    inside = counts & (bent > -1)
    bent = xp.where(inside, bent, 0.0)
    logarithm = xp.where(inside, distance, 0.0) * _log_over(bent, xp)
    return xp.where(inside, _array.exp(logarithm, xp), 0.0), bent


def _log_over(bent: Array, xp: Any) -> Array:
    """Return log(1 + w) / w, with its limit and slope at w = 0."""
    near = xp.abs(bent) < SMALL
    series, small = xp.zeros_like(bent), xp.where(near, bent, 0.0)
    for power in range(8, 0, -1):
        series = series * -small + 1.0 / power
    far = xp.where(near, 1.0, bent)
    return xp.where(near, series, xp.log1p(far) / far)


def _excess(rows: Rows, bend: Array | float, top: Array) -> tuple[Array, Array]:
    """Return log of the sum of the weights, which is 0 at the root, and its slope in t, per row."""
    ratios, bent = _ratios(rows, bend, top)
    mass = rows.nonzero(rows.sum(ratios))
    # d r / d t = -w / (1 + w)
    slope = rows.sum(ratios / (1 + bent)) / mass
    return top + rows.xp.log(mass), rows.xp.where(slope > 0, slope, 1.0)


def _solve(rows: Rows, bend: Array | float) -> Float[Array, "..."]:
    """Find the root in t for all rows at once, by Newton steps inside a bracket."""
    xp = rows.xp
    unit = float(xp.finfo(rows.offset.dtype).eps)
    # The error of a Newton step is the square of the step; that of a halving is the step itself.
    newton_close, halving_close = unit**0.5, 4 * unit
    count = xp.astype(rows.items(), rows.offset.dtype)
    low = -xp.log(xp.where(count > 1, count, 1.0))
    high = xp.zeros_like(low)

    def unfinished(state: tuple[Array, ...]) -> Array:
        return xp.any((state[3] == 0) & (state[4] < MOST_STEPS))

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        top, low, high, done, steps = state
        excess, slope = _excess(rows, bend, top)
        low, high = xp.where(excess < 0, top, low), xp.where(excess >= 0, top, high)
        # Limited to the bracket: where one item has all the weight, the root is at its end.
        newton = xp.minimum(xp.maximum(top - excess / slope, low), high)
        # Every fifth step halves the bracket, so that poor Newton steps cannot go on for long.
        usable = (newton == newton) & (steps % 5 < 4)
        moved = xp.where(done > 0, top, xp.where(usable, newton, 0.5 * (low + high)))
        close = xp.where(usable, newton_close, xp.full_like(top, halving_close))
        still = xp.abs(moved - top) <= close * (1 - top)
        return moved, low, high, xp.where(still, 1.0, done), steps + 1

    start = -xp.log(rows.nonzero(rows.sum(rows.exponentials(1.0))))
    state = (
        xp.minimum(xp.maximum(start, low), high),
        low,
        high,
        xp.zeros_like(low),
        xp.zeros_like(low),
    )
    return _array.while_loop(unfinished, step, state)[0]
