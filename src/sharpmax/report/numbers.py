"""Numbers as people read them, the same in sentences, tables and the page's script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

SIGNIFICANT_DIGITS = 5
"""More than a screen can show; fewer would show as steps in a curve."""

ABSENT = "\N{EN DASH}"


def rounded(value: Any) -> Any:
    """Numbers to a few significant digits and NaN as None, at any depth."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None
    return value


def number(value: float | None, digits: int) -> str:
    """As the page's script writes it too; no minus sign before a zero."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:z,.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:z.{digits}f}\N{NO-BREAK SPACE}%"


def points(difference: float) -> str:
    """A difference of shares, with its sign."""
    return f"{100 * difference:+z.1f}"


def chance(p: float | None) -> str:
    """p of a test; a dash where there was nothing to test."""
    return ABSENT if p is None else f"{p:.2g}"


def power(logarithm: float) -> str:
    """A number by its decimal logarithm, as a number while it is one to read."""
    return f"{round(10**logarithm):,}" if logarithm < 6 else f"10^{logarithm:.0f}"


def amount(count: int) -> str:
    """A count as people say it: 135 million, 1.24 billion."""
    for size, name in ((10**9, " billion"), (10**6, " million")):
        if count >= size:
            # Three digits, but never in powers of ten.
            decimals = max(0, 2 - int(math.log10(count / size)))
            return f"{count / size:.{decimals}f}{name}"
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def ends(values: Sequence[float]) -> str:
    """The first and the last of numbers that grow."""
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def listed(numbers: Sequence[int]) -> str:
    """Whole numbers as a sentence has them, runs of three and more joined: 1, 4-6 and 9."""
    runs: list[list[int]] = []
    for one in sorted(numbers):
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}\N{EN DASH}{run[-1]}"] if len(run) > 2 else [str(one) for one in run]
    return joined(parts)


def joined(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
