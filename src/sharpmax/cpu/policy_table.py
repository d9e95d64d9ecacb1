"""Policies that the compiled kernel knows: a few numbers in place of Python.

A policy asked from Python costs as much as attention to a hundred keys. The policies of this
package that look at the entropy are polynomials, perhaps held at a peak, or a Newton step towards a
target, so that a few numbers say all of them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sharpmax.policies import (
    Constant,
    Policy,
    Polynomial,
    Saturating,
    TargetEntropy,
    inverse_temperatures,
)

if TYPE_CHECKING:
    from jaxtyping import Float


class Table(NamedTuple):
    """A policy of the entropy H as numbers.

    b = 1 where H <= threshold, else max(polynomial(H), floor)
    b = max(b, peak) where H > nats, for each pair of `peaks`

    With a target, b is that of `TargetEntropy` instead.
    """

    coefficients: Float[np.ndarray, " terms"]
    """Threshold, floor, and the polynomial from its highest power to the constant."""
    peaks: Float[np.ndarray, "peaks 2"]
    """Pairs of an entropy in nats and the inverse temperature to hold beyond it."""
    target: Float[np.ndarray, " numbers"]
    """The target in nats and the largest inverse temperature; empty for other policies."""


NO_TABLE = Table(np.zeros(3, np.float32), np.empty((0, 2), np.float32), np.empty(0, np.float32))
"""Stands for a policy that Python is asked about."""


def tabulate(policy: Policy) -> Table | None:
    """Return a policy as numbers, or None if only its Python code says what it does."""
    # Not by isinstance: a subclass may answer otherwise.
    if type(policy) in (Constant, Polynomial, Saturating, TargetEntropy):
        table: Table | None = _tabulate(policy)  # type: ignore[arg-type]  # these are hashable
        return table
    return None


@functools.lru_cache(maxsize=256)
def _tabulate(policy: Policy) -> Table | None:
    if type(policy) is TargetEntropy:
        if policy.exact:  # needs whole rows
            return None
        return NO_TABLE._replace(target=np.array([policy.nats, policy.largest], np.float32))
    held = policy.policy if isinstance(policy, Saturating) else policy
    peaks: tuple[tuple[float, float], ...] = ()
    numbers: tuple[float, ...]
    if type(held) is Constant:
        numbers = (-np.inf, 0.0, held.inverse_temperature)
    elif type(held) is Polynomial:
        numbers = (held.threshold, 1.0, *held.coefficients)
        peaks = held.peaks if isinstance(policy, Saturating) else ()
    else:
        return None
    # Checks the policy's answers on example rows, as at its first use elsewhere.
    inverse_temperatures(policy, np.zeros((1, 1, 1, 1)), np.ones((1, 1, 1, 1), np.int32))
    return Table(
        np.array(numbers, np.float32), np.array(peaks, np.float32).reshape(-1, 2), NO_TABLE.target
    )
