"""The arguments that the bounds share: number of items, spread of the logits, temperature."""

from __future__ import annotations

import math
from typing import Any

from sharpmax import _array
from sharpmax._array import Array


def checked_counts(count: Array | float, spread: Array | float, temperature: Array | float) -> Any:
    """(xp, count, spread / temperature, all were numbers); entries outside the domain are NaN."""
    if _array.is_number(count) and not count >= 1:
        raise ValueError(f"count must be at least 1 item, got {count!r}")
    xp, (ratio, count), number = checked_ratio(spread, temperature, count=count)
    return xp, xp.where(count >= 1, count, math.nan), ratio, number


def checked_ratio(
    spread: Array | float, temperature: Array | float, **others: Array | float
) -> tuple[Any, list[Array], bool]:
    """(xp, [spread / temperature, *others], all were numbers).

    A plain number outside the domain is refused. Array entries cannot be read while a function is
    traced; the ones outside give NaN.
    """
    if _array.is_number(spread) and not 0 <= spread < math.inf:
        raise ValueError(
            f"spread (largest minus smallest logit) must be finite and at least 0, got {spread!r}"
        )
    if _array.is_number(temperature):
        _array.positive_number("temperature", temperature)
    arguments = {"spread": spread, "temperature": temperature, **others}
    xp, (wide, degrees, *rest), number = _array.floating(**arguments)
    ratio = xp.where(wide >= 0, wide, math.nan) / xp.where(degrees > 0, degrees, math.nan)
    return xp, [ratio, *rest], number
