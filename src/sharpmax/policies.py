"""How much to sharpen: from a row's entropy and its number of items to an inverse temperature.

A policy is a callable `policy(entropy, count) -> inverse_temperature`, element by element on the
arrays of any library (or on plain numbers). Attention multiplies the row's logits by the answer. 1
is plain attention, more is sharper. Writing your own is writing such a function; the ones here are
frozen dataclasses, so they compare, hash and print.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from sharpmax import _array
from sharpmax._array import Array

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Entropy = Float[Array, "*rows"] | float
    Count = Int[Array, "*rows"] | int


MOST_NATS = 63 * math.log(2)
"""No row has more entropy: an int64 counts no more items."""


class Policy(Protocol):
    """From entropy in nats and number of items to an inverse temperature, row by row."""

    def __call__(self, entropy: Entropy, count: Count, /) -> Any: ...


def needs_entropy(policy: Policy) -> bool:
    """Whether a policy looks at the entropy; one that says `needs_entropy = False` does not.

    Attention then saves the pass over the keys that finds it.
    """
    return bool(getattr(policy, "needs_entropy", True))


def differs_by_head(policy: Policy) -> bool:
    """Whether a policy has an answer of its own for each head: it says `by_head = True`, and is
    then asked for all heads at once, [batch kv_heads group query].
    """
    return bool(getattr(policy, "by_head", False))


def inverse_temperatures(policy: Policy, entropy: Array, count: Array) -> Float[Array, "*rows"]:
    """The policy's answer for every row; a plain number serves them all."""
    answer = policy(entropy, count)
    shape = tuple(getattr(answer, "shape", ()))
    if shape not in ((), tuple(entropy.shape)):
        raise ValueError(
            f"the policy returned shape {shape} for entropies of shape {tuple(entropy.shape)}: "
            "expected one inverse temperature a row"
        )
    return answer if shape else _array.namespace(entropy=entropy).zeros_like(entropy) + answer


@runtime_checkable
class HasPeaks(Protocol):
    """A policy that knows where its inverse temperature stops rising with the entropy."""

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]: ...


@dataclass(frozen=True)
class Constant:
    """The same inverse temperature in every row. `Constant(1.0)` is plain attention."""

    inverse_temperature: float
    needs_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _array.positive_number("inverse_temperature", self.inverse_temperature)

    def __call__(self, entropy: Entropy, count: Count, /) -> Any:
        xp, (entropy, _), number = _array.floating(entropy=entropy, count=count)
        return _array.restored(xp.full_like(entropy, float(self.inverse_temperature)), number)

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        return ()


@dataclass(frozen=True)
class LogLength:
    """Sharpen by the length of the row against that of training, whatever its entropy.

        inverse temperature = max(1, log n / log reference)

    n is the number of items that the row can see, not the length of the tensor. Enough to hold the
    entropy of normal logits where it was at `reference` items, but not of bounded ones, as a head
    over a fixed vocabulary has: there it only slows the rise.
    """

    reference: float
    needs_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not _array.is_number(self.reference) or not 1 < self.reference < math.inf:
            raise ValueError(
                "reference must be a number of items above 1 (the length in training), "
                f"got {self.reference!r}"
            )

    def __call__(self, entropy: Entropy, count: Count, /) -> Any:
        xp, (_, count), number = _array.floating(entropy=entropy, count=count)
        items = xp.where(count > 1, count, 1.0)  # a row without items would give log 0
        ratio = xp.log(items) / math.log(self.reference)
        return _array.restored(xp.where(ratio > 1, ratio, 1.0), number)

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        return ()


@dataclass(frozen=True)
class Polynomial:
    """Sharpen by a polynomial of the entropy, and never below 1.

        inverse temperature = max(polyval(coefficients, H), 1)  where H > threshold,  else 1

    Coefficients run from the highest power to the constant, as in `numpy.polyval`. Rows at or below
    the threshold are sharp already and left alone; the maximum with 1 means that entropy is never
    raised.
    """

    coefficients: tuple[float, ...]
    threshold: float = 0.5

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
        xp, (entropy, _), number = _array.floating(entropy=entropy, count=count)
        first, *rest = self.coefficients
        value = entropy * first + rest[0] if rest else xp.full_like(entropy, first)
        for coefficient in rest[1:]:
            value = value * entropy + coefficient
        sharpened = _array.clamp(value, 1.0, math.inf, xp)  # a NaN entropy stays NaN
        return _array.restored(xp.where(entropy <= self.threshold, 1.0, sharpened), number)

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        """(entropy, inverse temperature) from which a rise ends: maxima, and the step at the
        threshold.
        """
        polynomial = np.poly1d(self.coefficients)
        maxima = [entropy for entropy in _maxima(self.coefficients) if entropy > self.threshold]
        return tuple(
            (entropy, float(polynomial(entropy)))
            for entropy in sorted([self.threshold, *maxima])
            if polynomial(entropy) > 1
        )


def _maxima(coefficients: tuple[float, ...]) -> list[float]:
    """The entropies that a row can have, 0 to MOST_NATS, at which a polynomial is largest nearby.

    Solved in h / MOST_NATS, where a leading coefficient too small to change a value anywhere can be
    told and dropped: dividing by it would overflow, or put a maximum where no row is.
    """
    powers = np.arange(len(coefficients))[::-1]
    scaled = np.asarray(coefficients) * MOST_NATS**powers
    felt = np.abs(scaled) > np.finfo(np.float64).eps * np.abs(scaled).max()
    polynomial = np.poly1d(scaled[np.argmax(felt) :])
    return [
        float(root.real) * MOST_NATS
        for root in np.atleast_1d(polynomial.deriv().roots)
        if abs(root.imag) < 1e-9 and 0 < root.real < 1 and polynomial.deriv(2)(root.real) < 0
    ]


PAPER = Polynomial((-0.037, 0.481, -2.3, 4.917, -1.791), threshold=0.5)
"""The published function (Figure 4 of arXiv 2410.01104). It sharpens rows of 0.849 to 5.945 nats,
most at 4.41 nats (2.42), and switches itself off above: a row spread over more than about 380 items
is left as it is.
"""


@dataclass(frozen=True)
class Saturating:
    """Hold a policy at its peak instead of letting it fall back as the entropy goes on rising.

        inverse temperature = max over h <= H of policy(h, n)

    The published quartic was fitted to entropies below 6 nats and turns down beyond, exactly where
    attention is most dispersed; `Saturating(PAPER)` keeps its 2.42 there. A policy that does not
    fall is left unchanged.
    """

    policy: Policy
    # Found once: finding them is NumPy work that torch.compile could not trace.
    _held: tuple[tuple[float, float], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.policy, HasPeaks):
            raise TypeError(
                f"Saturating needs a policy that knows its peaks, got {self.policy!r}; give it a "
                "property `peaks` of (entropy, inverse temperature) pairs"
            )
        object.__setattr__(self, "_held", self.policy.peaks)

    def __call__(self, entropy: Entropy, count: Count, /) -> Any:
        xp, (entropy, items), number = _array.floating(entropy=entropy, count=count)
        value = self.policy(entropy, items)
        for where, peak in self._held:
            value = xp.where((entropy > where) & (value < peak), peak, value)
        return _array.restored(value, number)

    @property
    def needs_entropy(self) -> bool:
        return bool(self._held) or needs_entropy(self.policy)

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        return ()


def fit_polynomial(
    entropies: Float[Array, " samples"],
    inverse_temperatures: Float[Array, " samples"],
    degree: int = 4,
    *,
    threshold: float = 0.5,
) -> Polynomial:
    """The policy that best explains measured (entropy, best inverse temperature) pairs, by least
    squares.

    This is how the paper's quartic was made (Figure 6 of arXiv 2410.01104): for many inputs find
    the inverse temperature that serves the right item best, then fit a polynomial of the entropy.
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
