"""Numbers as people read them, the same in sentences, tables, charts and the page's script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

SIGNIFICANT_DIGITS = 5
"""Kept of each number in a page: more than a screen can show, fewer would show as steps."""

ABSENT = "\N{EN DASH}"


def round_all(value: Any) -> Any:
    """Round numbers to a few significant digits and replace NaN by None, at any depth."""
    if isinstance(value, dict):
        return {key: round_all(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [round_all(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None
    return value


def fixed(value: float | None, digits: int) -> str:
    """Format a number with fixed decimals, as the page's script does; no minus before a zero."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:z,.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share as a percentage: 0.5 is 50.0 %."""
    return f"{100 * share:z.{digits}f}\N{NO-BREAK SPACE}%"


def share(mean: float, std: float | None = None) -> str:
    """Format a share in percent without the sign, with its standard deviation: 74.2 ± 11.7."""
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def points(difference: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    return f"{100 * difference:+z.1f}"


def p_value(p: float | None) -> str:
    """Format the p of a test; a dash where there was nothing to test."""
    return ABSENT if p is None else f"{p:.2g}"


def power_of_ten(logarithm: float) -> str:
    """Format a number given by its decimal logarithm, in full while it is short."""
    return f"{round(10**logarithm):,}" if logarithm < 6 else f"10^{logarithm:.0f}"


def amount(count: int) -> str:
    """Format a count as people say it: 135 million, 1.24 billion."""
    for size, name in ((10**9, " billion"), (10**6, " million")):
        if count >= size:
            # Three digits, but never in powers of ten.
            decimals = max(0, 2 - int(math.log10(count / size)))
            return f"{count / size:.{decimals}f}{name}"
    return f"{count:,}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: 1 head, 2 heads."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def span(values: Sequence[float]) -> str:
    """Format the first and the last of numbers that grow: 16 to 2,048."""
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def join_numbers(numbers: Sequence[int]) -> str:
    """Join whole numbers for a sentence, runs of three and more shortened: 1, 4-6 and 9."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}\N{EN DASH}{run[-1]}"] if len(run) > 2 else map(str, run)
    return join(parts)


def join(parts: Sequence[str]) -> str:
    """Join the parts of a sentence: a, b and c."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
