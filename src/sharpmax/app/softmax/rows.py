"""Make a row of logits: from a named shape, a drawn curve, or typed numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sharpmax.app.input_parsing import parse_curve, parse_logits

SEED = 0
"""Seed of the random shapes, so that the same settings give the same row."""


def one_maximum(count: int) -> np.ndarray:
    """Return equal items but for one that is larger: the row that attains the bounds of theory."""
    row = np.zeros(count)
    row[count // 2] = 1.0
    return row


def uniform(count: int) -> np.ndarray:
    return np.random.default_rng(SEED).random(count)


def gaussian(count: int) -> np.ndarray:
    return np.random.default_rng(SEED).normal(size=count)


def rising(count: int) -> np.ndarray:
    """Return evenly spaced items from the lowest to the highest."""
    return np.arange(count, dtype=np.float64)


SHAPES: dict[str, Callable[[int], np.ndarray]] = {
    "one maximum": one_maximum,
    "uniform": uniform,
    "gaussian": gaussian,
    "rising": rising,
}
DRAWN, TYPED = "drawn", "typed"
SOURCES = (*SHAPES, DRAWN, TYPED)


def make_row(source: str, count: int, spread: float, drawn: str, text: str) -> np.ndarray:
    """Return the logits of a source.

    Args:
        source: One of `SOURCES`.
        count: Number of items; typed logits have their own.
        spread: Largest minus smallest logit of a shape, or the height of the drawing field. Typed
            logits are left unchanged.
        drawn: Heights of the drawn curve, as text.
        text: Typed logits.
    """
    if source == TYPED:
        return parse_logits(text)
    if source == DRAWN:
        heights = parse_curve(drawn)
        positions = np.linspace(0, len(heights) - 1, count)
        return spread * np.interp(positions, np.arange(len(heights)), heights)
    return stretch(SHAPES[source](count), spread)


def stretch(values: np.ndarray, spread: float) -> np.ndarray:
    """Map values to the range from 0 to `spread`; equal values become 0."""
    width = np.ptp(values)
    return (values - values.min()) * (spread / width) if width > 0 else np.zeros_like(values)
