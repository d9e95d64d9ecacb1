"""Policies that do not look at the entropy: a constant, and laws of the number of items."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from sharpmax import _array
from sharpmax._array import Array

if TYPE_CHECKING:
    from sharpmax.policies.traits import Count, Entropy


@dataclass(frozen=True)
class Constant:
    """Use the same inverse temperature in every row. `Constant(1.0)` is plain attention.

    Args:
        inverse_temperature: the factor on all logits, positive and finite.

    Raises:
        ValueError: if the factor is not positive and finite.
    """

    inverse_temperature: float
    plain_up_to: int = field(init=False, repr=False, compare=False)
    needs_entropy: ClassVar[bool] = False
    learned: ClassVar[bool] = False
    any_library: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _array.positive_number("inverse_temperature", self.inverse_temperature)
        # Every call of attention reads it, so that a property would be slower.
        object.__setattr__(self, "plain_up_to", sys.maxsize if self.inverse_temperature == 1 else 0)

    def __call__(self, entropy: Entropy, count: Count, /) -> Any:
        xp, (entropy, _), number = _array.to_floating(entropy=entropy, count=count)
        return _array.from_floating(xp.full_like(entropy, float(self.inverse_temperature)), number)

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        """No peaks: the answer never falls as the entropy rises."""
        return ()


class LengthLaw:
    """Sharpen by the number of items alone: the base of such policies.

    A subclass is a frozen dataclass that writes `factor`. The number of items is what the row can
    see, not the length of the tensor.

    Examples:
        >>> @dataclass(frozen=True)
        ... class SquareRoot(LengthLaw):
        ...     reference: float
        ...
        ...     def factor(self, items, xp):
        ...         return xp.sqrt(items / self.reference)
    """

    needs_entropy: ClassVar[bool] = False
    learned: ClassVar[bool] = False
    any_library: ClassVar[bool] = True

    def factor(self, items: Array, xp: Any) -> Array:
        """Compute the inverse temperature of rows with this many items.

        Args:
            items: number of items per row, as floating numbers of 1 or more.
            xp: the array library of `items`, as an array API namespace.

        Returns:
            One inverse temperature per row.
        """
        raise NotImplementedError(f"{type(self).__name__} must define factor(items, xp)")

    def __call__(self, entropy: Entropy, count: Count, /) -> Any:
        xp, (_, count), number = _array.to_floating(entropy=entropy, count=count)
        items = xp.where(count > 1, count, 1.0)  # a row without items would give log 0
        return _array.from_floating(self.factor(items, xp), number)

    @property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        """No peaks: the answer does not depend on the entropy."""
        return ()


def check_reference(reference: float) -> None:
    """Refuse a length in training that is no finite number above 1."""
    if not _array.is_number(reference) or not 1 < reference < math.inf:
        raise ValueError(
            "reference must be a number of items above 1 (the length in training), "
            f"got {reference!r}"
        )


@dataclass(frozen=True)
class LogLength(LengthLaw):
    """Sharpen by the row's length relative to the length in training, whatever its entropy.

        inverse temperature = max(1, log n / log reference)

    This is the LogN attention of Qwen 1, confirmed in its code. It keeps the entropy of normally
    distributed logits where it was at `reference` items. For bounded logits, as of a head over a
    fixed vocabulary, it only slows the rise.

    Args:
        reference: number of items in training, more than 1.

    Raises:
        ValueError: if `reference` is not a finite number above 1.

    Examples:
        >>> sharpmax.LogLength(16)(0.0, 256)  # log 256 / log 16
        2.0
    """

    reference: float

    def __post_init__(self) -> None:
        check_reference(self.reference)

    def factor(self, items: Array, xp: Any) -> Array:
        ratio = xp.log(items) / math.log(self.reference)
        # Both: at the reference itself a rounded ratio may be above 1, and just beyond it below.
        return xp.where((items > self.reference) & (ratio > 1), ratio, 1.0)

    @property
    def plain_up_to(self) -> int:
        """Rows up to the length in training are plain."""
        return math.floor(self.reference)
