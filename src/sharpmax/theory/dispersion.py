"""Lemma 2.1, softmax must disperse: the weights and the entropy that bounded logits allow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sharpmax import _array
from sharpmax._array import Array

if TYPE_CHECKING:
    from jaxtyping import Float

    Numbers = Float[Array, "..."] | float


def weight_bounds(count: Numbers, spread: Numbers, temperature: Numbers = 1.0) -> tuple[Any, Any]:
    """Bound the weight that softmax can give to any one of `count` items, from both sides.

    Lemma 2.1 in its tight form: if every logit lies in an interval of length `spread` = d, then

        1 / (1 + (n - 1) exp(d / temperature)) <= weight <= 1 / (1 + (n - 1) exp(-d / temperature)).

    The printed lemma bounds the normaliser by n exp(.), which counts the item among its own rivals.
    Here the item competes with the n - 1 others only, so both bounds are attained: by one logit at
    one end of the interval and all others at the other end. The two forms differ most for few
    items and agree as n goes to infinity.

    Args:
        count: number of items n, at least 1.
        spread: largest minus smallest logit, at least 0.
        temperature: temperature of the softmax.

    Returns:
        The lower and the upper bound. Plain numbers give plain numbers, arrays give arrays of the
        same library, broadcast together. Array entries outside the domain give NaN.

    Raises:
        ValueError: if a plain number is outside its domain.

    Examples:
        >>> low, high = sharpmax.theory.weight_bounds(count=1000, spread=5.0)
    """
    xp, count, ratio, number = _check_counts(count, spread, temperature)
    # With exp(-d) only, since exp(d) may overflow. A lone item has weight 1 even if exp(-d) is 0.
    below, rivals = xp.exp(-ratio), count - 1
    low = xp.where(rivals == 0, 1.0, below / (below + xp.where(rivals == 0, 1.0, rivals)))
    high = 1.0 / (1.0 + rivals * below)
    return _array.from_floating(low, number), _array.from_floating(high, number)


def paper_weight_bounds(
    count: Numbers, spread: Numbers, temperature: Numbers = 1.0
) -> tuple[Any, Any]:
    """Bound the weight of an item by Lemma 2.1 of arXiv 2410.01104 as printed.

        exp(-d / temperature) / n <= weight <= exp(d / temperature) / n

    This is enough to show that every weight is of order 1/n. The upper bound may exceed 1 (or
    overflow to inf), where it says nothing; that of `weight_bounds` never does.

    Args:
        count: number of items n, at least 1.
        spread: largest minus smallest logit d, at least 0.
        temperature: temperature of the softmax.

    Returns:
        The lower and the upper bound, as numbers or arrays.

    Raises:
        ValueError: if a plain number is outside its domain.
    """
    xp, count, ratio, number = _check_counts(count, spread, temperature)
    low, high = xp.exp(-ratio) / count, _scaled_exp(ratio, 1 / count, xp)
    return _array.from_floating(low, number), _array.from_floating(high, number)


def items_until_dispersed(spread: Numbers, epsilon: Numbers, temperature: Numbers = 1.0) -> Any:
    """Compute the number of items from which no weight can reach `epsilon`.

    From the tight form of Lemma 2.1 this is the smallest integer n with

        n - 1 > (1 / epsilon - 1) exp(d / temperature).

    The printed lemma gives a larger number: `paper_items_until_dispersed`.

    Args:
        spread: largest minus smallest logit d, at least 0.
        epsilon: a weight above 0 and at most 1.
        temperature: temperature of the softmax.

    Returns:
        The number of items as a float or an array, inf beyond the range of floats.

    Raises:
        ValueError: if a plain number is outside its domain.
    """
    xp, ratio, epsilon, number = _check_epsilon(spread, epsilon, temperature)
    odds = (1 - epsilon) / epsilon
    # A weight of 1 is out of reach from two items on, even if exp(d) overflows.
    rivals = xp.where(odds == 0, 0.0, _scaled_exp(ratio, xp.where(odds == 0, 1.0, odds), xp))
    return _array.from_floating(xp.floor(rivals) + 2, number)


def paper_items_until_dispersed(
    spread: Numbers, epsilon: Numbers, temperature: Numbers = 1.0
) -> Any:
    """Compute exp(d / temperature) / epsilon, beyond which the printed lemma bounds all weights.

    Args:
        spread: largest minus smallest logit d, at least 0.
        epsilon: a weight above 0 and at most 1.
        temperature: temperature of the softmax.

    Returns:
        The number of items, as a float or an array, after which every weight is below `epsilon`.

    Raises:
        ValueError: if a plain number is outside its domain.
    """
    xp, ratio, epsilon, number = _check_epsilon(spread, epsilon, temperature)
    return _array.from_floating(_scaled_exp(ratio, 1 / epsilon, xp), number)


def items_until_ignored(
    spread: Numbers, diameter: Numbers, resolution: Numbers, temperature: Numbers = 1.0
) -> Any:
    """Compute the number of items from which no single item can change the output of a head.

    The corollary "dispersion induces reasoning failures" (arXiv 2410.01104): once two sets that
    differ in their largest item give the same output up to the precision of the machine, every
    continuous classifier behind the head answers both alike, and one of the answers is wrong.

    Exchange one item for another and keep the n - 1 others, whose weighted mean is m. The outputs
    are (1 - a) m + a v before and (1 - b) m + b w after, so they differ by

        a (v - m) - b (w - m),   0 <= a, b <= 1 / (1 + (n - 1) exp(-d / temperature)) = top(n).

    A norm is convex in (a, b), so its maximum is at a corner, where it is at most top(n) times the
    diameter of the values: |v - m|, |w - m| and |v - w| are all at most that. Equality is possible.
    The output is therefore the same up to `resolution` from `items_until_dispersed(spread,
    resolution / diameter)` items on.

    Args:
        spread: largest minus smallest logit d, at least 0.
        diameter: largest distance between the values of two items, above 0.
        resolution: the difference between outputs that the machine no longer sees, above 0; for a
            floating-point type its machine epsilon times the size of the output.
        temperature: temperature of the softmax.

    Returns:
        The number of items as a float or an array, inf beyond the range of floats; 1 where the
        resolution is at least the diameter, so that items never count.

    Raises:
        ValueError: if a plain number is outside its domain.

    Examples:
        >>> sharpmax.theory.items_until_ignored(spread=8.0, diameter=2.0, resolution=2**-7)
    """
    for name, value in (("diameter", diameter), ("resolution", resolution)):
        if _array.is_number(value):
            _array.positive_number(name, value)
    xp, (ratio, diameter, resolution), number = _check_ratio(
        spread, temperature, diameter=diameter, resolution=resolution
    )
    share = xp.where(diameter > 0, resolution, math.nan) / diameter
    one = xp.ones_like(share)
    items = items_until_dispersed(ratio, xp.where(share >= 1, one, share))
    return _array.from_floating(xp.where(share >= 1, one, items), number)


def minimum_entropy(count: Numbers, spread: Numbers, temperature: Numbers = 1.0) -> Any:
    """Compute the smallest entropy, in nats, of a softmax whose logits differ by at most `spread`.

    This is what Lemma 2.1 means for the entropy; it is not in the paper. In one logit,
    dH/de_i = -p_i (e_i - E_p[e]), so H rises up to the mean and falls beyond it: at a minimum every
    logit lies at an end of the interval. With k items at the top, n - k items a distance d (in
    units of the temperature) below, and r = exp(-d),

        H(k) = log Z + (n - k) r d / Z,   Z = k + (n - k) r.

    In x = k/n this falls until Z/n = r d / (1 - r) and rises after. So the best k is one of the two
    integers around n r (d - (1 - r)) / (1 - r)^2, and at least 1. For growing n the minimum is
    log n minus a constant: a head with bounded logits cannot keep a constant entropy.

    Args:
        count: number of items n, at least 1.
        spread: largest minus smallest logit d, at least 0.
        temperature: temperature of the softmax.

    Returns:
        The smallest entropy, as a number or an array; the two-level row above attains it.

    Raises:
        ValueError: if a plain number is outside its domain.
    """
    xp, count, ratio, number = _check_counts(count, spread, temperature)
    below = xp.exp(-ratio)
    gap = -xp.expm1(-ratio)
    # For nearly equal logits the fraction tends to 1/2 by cancellation, and every k gives log n.
    flat = gap < 1e-6
    safe = xp.where(flat, 1.0, gap)
    best = count * below * xp.where(flat, 0.5, (ratio - gap) / safe**2)

    def entropy_of(top: Array) -> Array:
        top = xp.where(top < 1, 1.0, xp.where(top > count, count, top))
        rest = (count - top) * below
        mass = top + rest
        return xp.log(mass) + rest * ratio / mass

    low, high = entropy_of(xp.floor(best)), entropy_of(xp.floor(best) + 1)
    return _array.from_floating(xp.where(low < high, low, high), number)


def _check_counts(count: Numbers, spread: Numbers, temperature: Numbers) -> Any:
    """Return (xp, count, spread / temperature, whether all were plain numbers)."""
    if _array.is_number(count) and not count >= 1:
        raise ValueError(f"count must be at least 1 item, got {count!r}")
    xp, (ratio, count), number = _check_ratio(spread, temperature, count=count)
    return xp, xp.where(count >= 1, count, math.nan), ratio, number


def _check_epsilon(spread: Numbers, epsilon: Numbers, temperature: Numbers) -> Any:
    """Return (xp, spread / temperature, epsilon, whether all were plain numbers)."""
    if _array.is_number(epsilon) and not 0 < epsilon <= 1:
        raise ValueError(f"epsilon must be a weight above 0 and at most 1, got {epsilon!r}")
    xp, (ratio, epsilon), number = _check_ratio(spread, temperature, epsilon=epsilon)
    return xp, ratio, xp.where((epsilon > 0) & (epsilon <= 1), epsilon, math.nan), number


def _check_ratio(
    spread: Numbers, temperature: Numbers, **others: Numbers
) -> tuple[Any, list[Array], bool]:
    """Return (xp, [spread / temperature, *others], whether all were plain numbers).

    A plain number outside the domain raises. Array entries cannot be read while a function is
    traced, so those outside the domain become NaN.
    """
    if _array.is_number(spread) and not 0 <= spread < math.inf:
        raise ValueError(
            f"spread (largest minus smallest logit) must be finite and at least 0, got {spread!r}"
        )
    if _array.is_number(temperature):
        _array.positive_number("temperature", temperature)
    arguments = {"spread": spread, "temperature": temperature, **others}
    xp, (spread, temperature, *rest), number = _array.to_floating(**arguments)
    positive = xp.where(temperature > 0, temperature, math.nan)
    return xp, [xp.where(spread >= 0, spread, math.nan) / positive, *rest], number


def _scaled_exp(exponent: Array, factor: Array, xp: Any) -> Array:
    """Return factor * exp(exponent), and inf without NumPy's overflow warning."""
    most = math.log(float(xp.finfo(exponent.dtype).max)) - 1
    logarithm = exponent + xp.log(factor)
    # The product is exact for small integers; the sum of logarithms reaches the largest float.
    plain = (exponent <= most) & (logarithm <= most)
    product = xp.exp(xp.where(plain, exponent, 0.0)) * xp.where(plain, factor, 1.0)
    large = xp.exp(xp.where(logarithm > most, 0.0, logarithm))
    return xp.where(plain, product, xp.where(logarithm > most, math.inf, large))
