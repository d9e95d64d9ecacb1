"""Sharpen each row until it is as focused as a target says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sharpmax import _array

if TYPE_CHECKING:
    from jaxtyping import Float

    from sharpmax._array import Array
    from sharpmax.policies.traits import Count, Entropy, Solve


@dataclass(frozen=True)
class TargetEntropy:
    """Sharpen every row whose entropy H is above a target T, so that it comes down to the target.

        inverse temperature b = min(sqrt(1 + 2 (H - T) / V), largest)   where H > T,  else 1

    V is the varentropy of the row, the variance of log p. This is one Newton step in b squared,
    from dH / dlog b = -V, so one pass over the keys is enough. It is exact where logits are
    normally distributed and no single one decides. Elsewhere it lands near the target: after a step
    of one nat, within about 0.1 nats for normal logits, 0.3 for a row with one clear maximum and
    0.5 for evenly spread logits (docs/policies.md).

    `exact=True` solves for b instead, as `sharpmax.inverse_temperature_for_entropy` does. That goes
    over the logits of a row a dozen times, so only implementations that hold whole rows can do it:
    `reference` and `streaming` of `sharpmax.torch`, `sharpmax.jax`, and the functions on arrays.

    No temperature brings k equal maxima below log k nats. Such rows get `largest` if `exact`, and
    equal logits, which nothing sharpens, stay as they are otherwise.

    Args:
        nats: the target T. `math.log(50)` is the entropy of 50 equal weights.
        largest: the largest inverse temperature.
        exact: whether to solve for the inverse temperature.

    Raises:
        ValueError: if `nats` is negative or `largest` not a finite number from 1 up.

    Examples:
        >>> sharpmax.TargetEntropy(3.0)(4.0, 1000, 1.0)  # sqrt(1 + 2 * 1 / 1)
        1.7320...
    """

    nats: float
    largest: float = 8.0
    exact: bool = False
    learned: ClassVar[bool] = False
    any_library: ClassVar[bool] = True
    needs_varentropy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _array.is_number(self.nats) or not 0 <= self.nats < math.inf:
            raise ValueError(f"nats must be an entropy, at least 0, got {self.nats!r}")
        if not _array.is_number(self.largest) or not 1 <= self.largest < math.inf:
            raise ValueError(f"largest must be a finite number from 1 up, got {self.largest!r}")
        object.__setattr__(self, "nats", float(self.nats))
        object.__setattr__(self, "largest", float(self.largest))
        object.__setattr__(self, "exact", bool(self.exact))

    @property
    def needs_rows(self) -> bool:
        """Whether whole rows of logits are needed."""
        return self.exact

    def __call__(
        self,
        entropy: Entropy,
        count: Count,
        varentropy: Float[Array, "*rows"] | float | None = None,
        solve: Solve | None = None,
        /,
    ) -> Any:
        if solve is not None:
            factor = solve(self.nats)
            return _array.clamp(factor, 1.0, self.largest, _array.namespace(factor=factor))
        if varentropy is None:
            raise TypeError(f"{self!r} takes (entropy, count, varentropy), got no varentropy")
        xp, (entropy, varentropy), number = _array.to_floating(
            entropy=entropy, varentropy=varentropy
        )
        excess = entropy - self.nats
        usable = (excess > 0) & (varentropy > 0)
        # Beyond this ratio the step is longer than `largest` allows; its square would overflow.
        longest = (self.largest**2 - 1) / 2
        bounded = excess >= longest * varentropy
        stepping = usable & ~bounded
        ratio = xp.where(stepping, excess, 0.0) / xp.where(stepping, varentropy, 1.0)
        factor = xp.where(usable & bounded, self.largest, xp.sqrt(1 + 2 * ratio))
        spoilt = xp.isnan(entropy) | xp.isnan(varentropy)
        return _array.from_floating(xp.where(spoilt, math.nan, factor), number)
