"""Find the inverse temperature at which a row's entropy falls to a target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

MOST_STEPS = 200
"""A bound on the loop; a dozen steps are usual."""


def inverse_temperature_for_entropy(
    logits: Float[Array, "..."],
    target: Float[Array, "..."] | float,
    *,
    where: Bool[Array, "..."] | None = None,
    axis: int = -1,
) -> Float[Array, "..."]:
    """Find the smallest inverse temperature (at least 1) that lowers a row's entropy to a target.

    Use it to ask how much a row must be sharpened to be as focused as it was on fewer items. The
    entropy falls as the inverse temperature b rises, with slope

        dH/db = -b Var_p(e)

    (Proposition 3.2 of arXiv 2410.01104), so there is one root. It is found for all rows at once,
    by Newton steps that bisection keeps inside a bracket.

    Args:
        logits: NumPy, PyTorch or JAX array of a floating type.
        target: the entropy in nats, a number or an array that broadcasts to the rows.
        where: boolean mask, True for the items that take part.
        axis: the axis of the items, which the answer does not have.

    Returns:
        One inverse temperature per row, differentiable in the logits and in the target: 1 where the
        row is sharp enough already; inf where no temperature is low enough, because k logits share
        the maximum and target <= log k; NaN where the row has a NaN.

    Raises:
        TypeError: if an argument has the wrong kind of type, or comes from another library.
        ValueError: if a shape does not fit, or the target is negative.

    Examples:
        >>> logits = np.array([3.0, 2.0, 1.0, 0.0])
        >>> factor = sharpmax.inverse_temperature_for_entropy(logits, 0.5)
        >>> float(sharpmax.entropy(factor * logits))
        0.5
    """
    rows = prepare(logits, where, axis)
    return rows.squeeze(_factor(rows, _goal(target, rows, logits)))


def solver(rows: Rows) -> Callable[[float], Array]:
    """Return a function from an entropy to the inverse temperatures of these rows."""

    def solve(nats: float) -> Array:
        return rows.squeeze(_factor(rows, rows.xp.full_like(rows.maximum, nats)))

    return solve


def _factor(rows: Rows, goal: Array) -> Array:
    """Return the inverse temperatures of prepared rows, with length 1 on the item axis."""
    frozen = rows._replace(offset=_array.stop_gradient(rows.offset))
    solution = _solve(frozen, _array.stop_gradient(goal))
    return _with_gradient(solution, rows, goal)


def entropy_and_variance(rows: Rows, scale: Array | float) -> tuple[Array, Array]:
    """Return H(p) and Var_p(logit) for p = softmax(scale * logits), one of each per row."""
    exponentials = rows.exponentials(scale)
    mass = rows.nonzero(rows.sum(exponentials))
    mean = rows.sum(rows.offset * exponentials) / mass
    # Centred first, since the difference of two large moments would lose the variance of a sharp
    # row. The offset of an item without mass would overflow when squared.
    centred = rows.xp.where(exponentials > 0, rows.offset - mean, 0.0)
    return rows.xp.log(mass) - scale * mean, rows.sum(centred**2 * exponentials) / mass


def _goal(target: Array, rows: Rows, logits: Array) -> Array:
    """Return the target with one entry per row and length 1 on the item axis."""
    row_shape = tuple(rows.squeeze(rows.maximum).shape)
    if _array.is_number(target):
        if not target >= 0:
            raise ValueError(f"target must be an entropy in nats, at least 0, got {target!r}")
        return rows.xp.full_like(rows.maximum, float(target))
    _array.namespace(logits=logits, target=target)
    _array.statistics_dtype("target", target, rows.xp)
    wide = rows.xp.astype(target, rows.maximum.dtype, copy=False)
    try:
        return rows.expand(rows.xp.broadcast_to(wide, row_shape))
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"target of shape {tuple(target.shape)} does not fit the rows, {row_shape}"
        ) from error


def _solve(rows: Rows, goal: Array) -> Array:
    """Find the root for all rows at once, without gradients."""
    xp = rows.xp
    one = xp.ones_like(goal)
    start, _ = entropy_and_variance(rows, 1.0)
    ties = rows.sum(xp.astype(rows.offset == 0, goal.dtype))
    reachable = goal > xp.log(xp.where(ties > 0, ties, 1.0))
    unsolved = (start > goal) & reachable
    # A few units in the last place: smaller differences are rounding.
    closeness = 8 * float(xp.finfo(goal.dtype).eps)

    def unfinished(state: tuple[Array, ...]) -> Array:
        _, low, high, steps = state
        return xp.any((high - low > closeness * low) & (steps < MOST_STEPS))

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        scale, low, high, steps = state
        entropy, variance = entropy_and_variance(rows, scale)
        excess = entropy - goal
        solved = xp.abs(excess) <= closeness * (1 + goal)
        low = xp.where((high > low) & (solved | (excess > 0)), scale, low)
        high = xp.where(solved | (excess <= 0), xp.minimum(high, scale), high)
        slope = scale * variance
        usable = _usable(slope, excess, xp)
        newton = xp.where(usable, scale + excess / xp.where(usable, slope, 1.0), low)
        return _step_inside(newton, low, high, xp), low, high, steps + 1

    state = (one, one, xp.where(unsolved, math.inf, one), xp.zeros_like(goal))
    solution = _array.while_loop(unfinished, step, state)[2]
    answer = xp.where(unsolved | (start <= goal), solution, math.inf)
    return xp.where(xp.isnan(start), start, answer)


def _step_inside(newton: Array, low: Array, high: Array, xp: Any) -> Array:
    """Take Newton's step if it falls inside the bracket, else the middle of the bracket.

    While the bracket has no upper end, multiply the scale by itself (at most by 1e8) instead. A
    wide bracket is halved in the logarithm. Two logits 1e-200 apart need a scale of 1e200, which
    doubling and halving would take hundreds of steps to find.
    """
    unbounded = high == math.inf
    largest = 0.5 * float(xp.finfo(low.dtype).max)
    factor = xp.minimum(xp.where(low < 8, 8.0, xp.where(low < 1e8, low, 1e8)), largest / low)
    farthest = xp.where(unbounded, low * factor, high)
    halved = xp.where(farthest / 4 > low, xp.sqrt(low) * xp.sqrt(farthest), 0.5 * (low + farthest))
    middle = xp.where(unbounded, farthest, halved)
    return xp.where((newton > low) & (newton < farthest), newton, middle)


def _usable(slope: Array, excess: Array, xp: Any) -> Array:
    """Say where a Newton step is finite; logits closer than 1e-160 have a variance of about 0."""
    return slope > xp.abs(excess) / float(xp.finfo(slope.dtype).max)


def _with_gradient(solution: Array, rows: Rows, goal: Array) -> Array:
    """Take one more Newton step, which carries the gradient of the implicit function theorem."""
    xp = rows.xp
    active = (solution > 1) & (solution < math.inf)
    scale = xp.where(active, solution, 1.0)
    entropy, variance = entropy_and_variance(rows, scale)
    slope = _array.stop_gradient(scale * variance)
    usable = active & _usable(slope, entropy - goal, xp)
    return xp.where(usable, scale + (entropy - goal) / xp.where(usable, slope, 1.0), solution)
