"""Lemma 2.1, softmax must disperse: what n logits of bounded spread allow a weight to be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.theory._domain import checked_counts, checked_ratio

if TYPE_CHECKING:
    from jaxtyping import Float

    Numbers = Float[Array, "..."] | float


def weight_bounds(count: Numbers, spread: Numbers, temperature: Numbers = 1.0) -> tuple[Any, Any]:
    """The least and the largest weight that softmax can give any of `count` items.

    Lemma 2.1 in its tight form: if every logit lies in an interval of length `spread` = d, then

        1 / (1 + (n - 1) exp(d / temperature)) <= weight <= 1 / (1 + (n - 1) exp(-d / temperature)).

    The printed lemma bounds the normaliser by n exp(.) and so counts the item itself among its
    rivals. Here the item competes with the n - 1 others only, which makes both ends attained: one
    logit at one end of the interval, all others at the other. For n = 1 both are 1. The gap to the
    printed form is largest for few items; for n to infinity they agree.
    """
    xp, count, ratio, number = checked_counts(count, spread, temperature)
    # With exp(-d) only, since exp(d) may overflow; a lone item has all, also when exp(-d) vanishes.
    below, rivals = xp.exp(-ratio), count - 1
    low = xp.where(rivals == 0, 1.0, below / (below + xp.where(rivals == 0, 1.0, rivals)))
    return _array.restored(low, number), _array.restored(1.0 / (1.0 + rivals * below), number)


def paper_weight_bounds(
    count: Numbers, spread: Numbers, temperature: Numbers = 1.0
) -> tuple[Any, Any]:
    """Lemma 2.1 of arXiv 2410.01104 as printed.

        exp(-d / temperature) / n <= weight <= exp(d / temperature) / n

    Enough to show that every weight is of order 1/n. The upper bound may exceed 1 (or overflow to
    inf), where it says nothing; `weight_bounds` never does.
    """
    xp, count, ratio, number = checked_counts(count, spread, temperature)
    low, high = xp.exp(-ratio) / count, _scaled_exp(ratio, 1 / count, xp)
    return _array.restored(low, number), _array.restored(high, number)


def items_until_dispersed(spread: Numbers, epsilon: Numbers, temperature: Numbers = 1.0) -> Any:
    """The first number of items at which no weight can reach `epsilon`.

    From the tight form of Lemma 2.1, the smallest whole n with

        n - 1 > (1 / epsilon - 1) exp(d / temperature),

    as a float, and inf beyond the float range. The printed lemma gives a later one:
    `paper_items_until_dispersed`.
    """
    xp, ratio, epsilon, number = _thresholds(spread, epsilon, temperature)
    odds = (1 - epsilon) / epsilon
    # A weight of 1 is out of reach from two items on, even if exp(d) overflows.
    rivals = xp.where(odds == 0, 0.0, _scaled_exp(ratio, xp.where(odds == 0, 1.0, odds), xp))
    return _array.restored(xp.floor(rivals) + 2, number)


def paper_items_until_dispersed(
    spread: Numbers, epsilon: Numbers, temperature: Numbers = 1.0
) -> Any:
    """exp(d / temperature) / epsilon: beyond it the printed lemma keeps weights below epsilon."""
    xp, ratio, epsilon, number = _thresholds(spread, epsilon, temperature)
    return _array.restored(_scaled_exp(ratio, 1 / epsilon, xp), number)


def _thresholds(
    spread: Numbers, epsilon: Numbers, temperature: Numbers
) -> tuple[Any, Array, Array, bool]:
    if _array.is_number(epsilon) and not 0 < epsilon <= 1:
        raise ValueError(f"epsilon must be a weight above 0 and at most 1, got {epsilon!r}")
    xp, (ratio, epsilon), number = checked_ratio(spread, temperature, epsilon=epsilon)
    return xp, ratio, xp.where((epsilon > 0) & (epsilon <= 1), epsilon, math.nan), number


def _scaled_exp(exponent: Array, factor: Array, xp: Any) -> Array:
    """factor * exp(exponent), inf without NumPy's overflow warning: infinity is the answer here."""
    most = math.log(float(xp.finfo(exponent.dtype).max)) - 1
    logarithm = exponent + xp.log(factor)
    # The product is exact where whole numbers matter; in logarithms it goes as far as the type.
    plain = (exponent <= most) & (logarithm <= most)
    product = xp.exp(xp.where(plain, exponent, 0.0)) * xp.where(plain, factor, 1.0)
    large = xp.exp(xp.where(logarithm > most, 0.0, logarithm))
    return xp.where(plain, product, xp.where(logarithm > most, math.inf, large))
