"""Fit a policy to measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.policies.entropy import Polynomial

if TYPE_CHECKING:
    from jaxtyping import Float


def fit_polynomial(
    entropies: Float[Array, " samples"],
    inverse_temperatures: Float[Array, " samples"],
    degree: int = 4,
    *,
    threshold: float = 0.5,
) -> Polynomial:
    """Fit a polynomial policy to measured pairs of entropy and best inverse temperature.

    This is how the paper's quartic was made (Figure 6 of arXiv 2410.01104): for many inputs, find
    the inverse temperature that is best for the right item, then fit a polynomial of the entropy by
    least squares.

    Args:
        entropies: measured entropies in nats.
        inverse_temperatures: the best inverse temperature for each.
        degree: degree of the polynomial.
        threshold: entropy in nats up to which the policy leaves rows as they are.

    Returns:
        The fitted policy.

    Raises:
        ValueError: if the samples are not finite pairs, or too few for the degree.
    """
    x, y = _array.to_numpy(entropies).ravel(), _array.to_numpy(inverse_temperatures).ravel()
    if x.shape != y.shape:
        raise ValueError(
            f"got {x.size} entropies and {y.size} inverse temperatures: expected pairs"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(
            "entropies and inverse temperatures must be finite; leave the other samples out"
        )
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 0:
        raise ValueError(f"degree must be a whole number from 0 up, got {degree!r}")
    if np.unique(x).size <= degree:
        raise ValueError(
            f"a polynomial of degree {degree} needs at least {degree + 1} different entropies, "
            f"got {np.unique(x).size}"
        )
    fitted = np.polynomial.Polynomial.fit(x, y, degree).convert().coef
    ascending = np.pad(fitted, (0, degree + 1 - fitted.size))  # convert() drops zeros at the top
    return Polynomial(tuple(ascending[::-1].tolist()), threshold=threshold)
