"""The least entropy that logits of bounded spread allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.theory._domain import checked_counts

if TYPE_CHECKING:
    from jaxtyping import Float

    Numbers = Float[Array, "..."] | float


def minimum_entropy(count: Numbers, spread: Numbers, temperature: Numbers = 1.0) -> Any:
    """The least entropy, in nats, that softmax can have over `count` items whose logits differ by
    `spread`.

    Not in the paper; it is what its Lemma 2.1 means for entropy. In one logit, dH/de_i = -p_i (e_i
    - E_p[e]), so H rises up to the mean and falls beyond it: at a minimum every logit sits at an
    end of the interval. With k items at the top and n - k a distance d (in units of the
    temperature) below, r = exp(-d),

        H(k) = log Z + (n - k) r d / Z,   Z = k + (n - k) r,

    which in x = k/n falls until Z/n = r d / (1 - r) and rises after. So the best k is one of the
    two whole numbers around n r (d - (1 - r)) / (1 - r)^2, and at least 1. For growing n this is
    log n minus a constant: a head of bounded spread cannot stay at a constant entropy. Attained by
    that very row.
    """
    xp, count, ratio, number = checked_counts(count, spread, temperature)
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
    return _array.restored(xp.where(low < high, low, high), number)
