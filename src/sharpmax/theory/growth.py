"""How many items compete with a row's maximum as rows grow, and which law of sharpening that needs.

A row keeps its focus as long as the mass of the competitors, relative to that of the maximum,

    M_n(b) = sum over items below the maximum of exp(-b * gap)

does not grow. How b must grow for that depends on where the new items fall:

- at a fixed distance below the maximum, n of them: log n - b * gap is to stay, so b ~ log n;
- in the tail of a normal distribution: the distance of the next items shrinks like
  1 / sqrt(log n), so b ~ sqrt(log n);
- in an exponential tail: as many items within any distance as before, so b need not grow;
- everywhere near the maximum, as with a bounded distribution: b ~ n, faster than any power of
  log n.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from sharpmax._array import Array
from sharpmax.ops._rows import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int, Shaped

GAPS: Final = tuple(2.0 ** (step / 2) for step in range(-6, 12))
"""Distances below the maximum at which competitors are counted, in nats: 0.125 to 45."""

LAWS: Final = {
    "none": 0.25,
    "sqrt(log n)": 0.75,
    "log n": 1.5,
    "(log n)^2": 3.0,
    "faster": math.inf,
}
"""Laws of sharpening that hold a focus, by the largest power of log n for which each is named."""

LOWEST, HIGHEST = 2.0**-10, 2.0**10
"""The range in which an inverse temperature is sought."""


def count_competitors(
    logits: Float[Array, "..."],
    gaps: Sequence[float] = GAPS,
    *,
    top: Float[Array, "..."] | None = None,
    where: Bool[Array, "..."] | None = None,
    axis: int = -1,
) -> Int[Array, "..."]:
    """Count the items within each distance of the row's maximum, and with it.

    To stream over a long row, find its maximum first, pass it with every piece, and add the counts.

    Args:
        logits: NumPy, PyTorch or JAX array of a floating type.
        gaps: distances below the maximum.
        top: the maximum of each row, if these are not all its items.
        where: boolean mask, True for the items that take part.
        axis: the axis of the items.

    Returns:
        One number per row and distance; the distances are the last axis. The maximum itself counts,
        so that a row with one clear maximum has 1 at small distances. A row without items has 0.

    Raises:
        TypeError: if an argument has the wrong kind of type, or comes from another library.
        ValueError: if a shape does not fit.

    Examples:
        >>> count_competitors(np.array([5.0, 4.5, 1.0]), gaps=(0.1, 1.0, 10.0))
        array([1, 2, 3])
    """
    rows = prepare(logits, where, axis)
    xp = rows.xp
    visible = rows.values != -math.inf
    largest = rows.maximum if top is None else rows.expand(top)
    counts = []
    for gap in gaps:
        # Not by the difference, which is NaN for two infinities.
        near = visible & (rows.values >= largest - gap)
        counts.append(rows.squeeze(rows.sum(xp.astype(near, xp.int32))))
    return xp.stack(counts, axis=-1)


def sharpening_to_hold_focus(
    counts: Shaped[np.ndarray, "sizes *rows gaps"], gaps: Sequence[float] = GAPS
) -> Float[np.ndarray, "sizes ..."]:
    """Find the inverse temperature at which longer rows are as focused as the shortest is at 1.

    Items between two distances are taken to be in the middle between them. What is further below
    the maximum than the last distance is left out.

    Args:
        counts: what `count_competitors` returned for rows of growing size; averages are allowed.
        gaps: the same distances.

    Returns:
        The inverse temperature per size and row, 1 for the first size. NaN where nothing competes
        in the shortest rows, or nothing does in the longer ones.

    Raises:
        ValueError: if the last axis is not that of the distances.
    """
    counts = np.asarray(counts, np.float64)
    edges = np.asarray(gaps, np.float64)
    if counts.ndim < 1 or counts.shape[-1] != len(edges):
        raise ValueError(
            f"counts of shape {counts.shape} must have one number for each of {len(edges)} gaps"
        )
    middles = (edges + np.concatenate([[0.0], edges[:-1]])) / 2
    between = np.diff(counts, axis=-1, prepend=1.0)  # without the maximum itself
    between = np.maximum(between, 0.0)

    def mass(factor: Float[np.ndarray, "sizes ..."]) -> Float[np.ndarray, "sizes ..."]:
        return (between * np.exp(-factor[..., None] * middles)).sum(-1)

    goal = mass(np.ones(counts.shape[:-1]))[0]
    low, high = (np.full(counts.shape[:-1], np.log(end)) for end in (LOWEST, HIGHEST))
    for _ in range(60):
        middle = (low + high) / 2
        larger = mass(np.exp(middle)) > goal
        low, high = np.where(larger, middle, low), np.where(larger, high, middle)
    known = (goal > 0) & (between.sum(-1) > 0)
    return np.where(known, np.exp((low + high) / 2), np.nan)


def growth_power(
    sizes: Sequence[float],
    counts: Shaped[np.ndarray, "sizes *rows gaps"],
    gaps: Sequence[float] = GAPS,
) -> Float[np.ndarray, "*rows"]:
    """Find the power p such that sharpening like (log n)^p holds the focus of growing rows.

    Args:
        sizes: the numbers of items, growing, the first at least 2.
        counts: what `count_competitors` returned for each size.
        gaps: the same distances.

    Returns:
        The power, by least squares over the sizes; `name_law` says what it means. NaN where nothing
        competes.

    Raises:
        ValueError: if there are fewer than two sizes, they do not grow, or the shapes do not fit.
    """
    if len(sizes) < 2 or sizes[0] < 2 or any(np.diff(sizes) <= 0):
        raise ValueError(f"sizes must be two or more growing numbers from 2 up, got {list(sizes)}")
    if np.shape(counts)[:1] != (len(sizes),):
        raise ValueError(f"counts of shape {np.shape(counts)} must begin with {len(sizes)} sizes")
    factors = sharpening_to_hold_focus(counts, gaps)
    logs = np.log(np.log(sizes) / np.log(sizes[0]))
    return np.asarray(np.tensordot(logs, np.log(factors), 1) / (logs**2).sum())


def name_law(power: float) -> str:
    """Name the law of sharpening with about this power of log n.

    Args:
        power: what `growth_power` returned.

    Returns:
        A key of `LAWS`; "nothing competes" for NaN.
    """
    if math.isnan(power):
        return "nothing competes"
    return next(law for law, largest in LAWS.items() if power < largest or largest == math.inf)
