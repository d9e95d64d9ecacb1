"""Policies that sharpen by the entropy of the row: polynomials, and holding them at their peak."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from sharpmax import _array
from sharpmax.policies.traits import Policy, traits

if TYPE_CHECKING:
    from sharpmax.policies.traits import Count, Entropy

MOST_NATS = 63 * math.log(2)
"""No row has more entropy than this, since the number of its items fits in an int64."""


@runtime_checkable
class HasPeaks(Protocol):
    """Require that a policy knows where its inverse temperature stops rising with the entropy."""

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        """Pairs of an entropy and the inverse temperature there, at which a rise ends."""


@dataclass(frozen=True)
class Polynomial:
    """Sharpen by a polynomial of the entropy, with an inverse temperature of at least 1.

        inverse temperature = max(polyval(coefficients, H), 1)  where H > threshold,  else 1

    Rows at or below the threshold are sharp already and stay as they are. Because of the maximum
    with 1, the entropy is never raised.

    Args:
        coefficients: from the highest power to the constant, as in `numpy.polyval`.
        threshold: entropy in nats up to which rows stay as they are.

    Raises:
        ValueError: if a coefficient is not finite, there is none, or the threshold is negative.

    Examples:
        >>> sharpmax.Polynomial((0.5, 1.0))(2.0, 100)  # 0.5 * 2 + 1
        2.0
    """

    coefficients: tuple[float, ...]
    threshold: float = 0.5
    learned: ClassVar[bool] = False
    any_library: ClassVar[bool] = True

    def __post_init__(self) -> None:
        coefficients = tuple(float(coefficient) for coefficient in self.coefficients)
        if not coefficients or not all(map(math.isfinite, coefficients)):
            raise ValueError(
                "coefficients must be finite numbers, highest power first, "
                f"got {self.coefficients!r}"
            )
        if not _array.is_number(self.threshold) or not self.threshold >= 0:
            raise ValueError(
                f"threshold must be an entropy in nats, at least 0, got {self.threshold!r}"
            )
        object.__setattr__(self, "coefficients", coefficients)

    def __call__(self, entropy: Entropy, count: Count, /) -> Any:
        xp, (entropy, _), number = _array.to_floating(entropy=entropy, count=count)
        first, *rest = self.coefficients
        value = entropy * first + rest[0] if rest else xp.full_like(entropy, first)
        for coefficient in rest[1:]:
            value = value * entropy + coefficient
        sharpened = _array.clamp(value, 1.0, math.inf, xp)  # a NaN entropy stays NaN
        return _array.from_floating(xp.where(entropy <= self.threshold, 1.0, sharpened), number)

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        """Pairs of an entropy and the inverse temperature there, at which a rise ends: the maxima,
        and the step at the threshold."""
        polynomial = np.poly1d(self.coefficients)
        maxima = [entropy for entropy in _maxima(self.coefficients) if entropy > self.threshold]
        return tuple(
            (entropy, float(polynomial(entropy)))
            for entropy in sorted([self.threshold, *maxima])
            if polynomial(entropy) > 1
        )


def _maxima(coefficients: tuple[float, ...]) -> list[float]:
    """Find the local maxima of a polynomial between 0 and MOST_NATS.

    Solved in h / MOST_NATS. There a leading coefficient that is too small to change any value can
    be recognised and dropped; dividing by it would overflow or give a maximum out of reach.
    """
    powers = np.arange(len(coefficients))[::-1]
    scaled = np.asarray(coefficients) * MOST_NATS**powers
    matters = np.abs(scaled) > np.finfo(np.float64).eps * np.abs(scaled).max()
    polynomial = np.poly1d(scaled[np.argmax(matters) :])
    return [
        float(root.real) * MOST_NATS
        for root in np.atleast_1d(polynomial.deriv().roots)
        if abs(root.imag) < 1e-9 and 0 < root.real < 1 and polynomial.deriv(2)(root.real) < 0
    ]


PAPER = Polynomial((-0.037, 0.481, -2.3, 4.917, -1.791), threshold=0.5)
"""The published policy (Figure 4 of arXiv 2410.01104). It sharpens rows of 0.849 to 5.945 nats,
most at 4.41 nats (by 2.42). Above, in rows spread over more than about 380 items, it does nothing.
"""


@dataclass(frozen=True)
class Saturating:
    """Hold a policy at its peak instead of letting it fall as the entropy keeps rising.

        inverse temperature = max over h <= H of policy(h, n)

    The published quartic was fitted to entropies below 6 nats and falls beyond, exactly where
    attention is most dispersed. `Saturating(PAPER)` keeps its 2.42 there. A policy that does not
    fall stays unchanged.

    Args:
        policy: the policy to hold, which must know its peaks (see `HasPeaks`).

    Raises:
        TypeError: if the policy does not know its peaks.

    Examples:
        >>> sharpmax.PAPER(7.0, 5000), sharpmax.Saturating(sharpmax.PAPER)(7.0, 5000)
        (1.0, 2.4213866450243706)
    """

    policy: Policy
    # Computed once, since torch.compile cannot trace the NumPy code that finds the peaks.
    _peaks: tuple[tuple[float, float], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.policy, HasPeaks):
            raise TypeError(
                f"Saturating needs a policy that knows its peaks, got {self.policy!r}; give it a "
                "property `peaks` of (entropy, inverse temperature) pairs"
            )
        object.__setattr__(self, "_peaks", self.policy.peaks)

    def __call__(self, entropy: Entropy, count: Count, /) -> Any:
        xp, (entropy, items), number = _array.to_floating(entropy=entropy, count=count)
        value = self.policy(entropy, items)
        for nats, peak in self._peaks:
            value = xp.where((entropy > nats) & (value < peak), peak, value)
        return _array.from_floating(value, number)

    @property
    def needs_entropy(self) -> bool:
        """Whether the entropy matters: it does if there are peaks to hold."""
        return bool(self._peaks) or traits(self.policy).needs_entropy

    @property
    def by_head(self) -> bool:
        """As the policy that is held."""
        return traits(self.policy).by_head

    @property
    def learned(self) -> bool:
        """As the policy that is held."""
        return traits(self.policy).learned

    @property
    def any_library(self) -> bool:
        """As the policy that is held."""
        return traits(self.policy).any_library

    @property
    def plain_up_to(self) -> int:
        """As the policy that is held, unless there are peaks: they hold for rows of any length."""
        return 0 if self._peaks else traits(self.policy).plain_up_to

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        """No peaks: the answer never falls as the entropy rises."""
        return ()
