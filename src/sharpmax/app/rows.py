"""A row of logits to look at: made of a shape, drawn by hand, or typed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sharpmax.app import typed

SEED = 0
"""Of the random shapes: the same row comes back with the same settings."""


def one_maximum(count: int) -> np.ndarray:
    """One item above all others, which are equal: what attains the theory's bounds."""
    row = np.zeros(count)
    row[count // 2] = 1.0
    return row


def uniform(count: int) -> np.ndarray:
    return np.random.default_rng(SEED).random(count)


def gaussian(count: int) -> np.ndarray:
    return np.random.default_rng(SEED).normal(size=count)


def rising(count: int) -> np.ndarray:
    """Evenly from the lowest to the highest."""
    return np.arange(count, dtype=np.float64)


SHAPES: dict[str, Callable[[int], np.ndarray]] = {
    "one maximum": one_maximum,
    "uniform": uniform,
    "gaussian": gaussian,
    "rising": rising,
}
DRAWN, TYPED = "drawn", "typed"
SOURCES = (*SHAPES, DRAWN, TYPED)


def row(source: str, count: int, spread: float, drawn: str | None, text: str) -> np.ndarray:
    """The logits. A shape is stretched until its largest and its smallest differ by `spread`; a
    drawn curve is as high as it was drawn, the whole field being `spread`; what was typed is left
    alone.
    """
    if source == TYPED:
        return typed.logits(text)
    if source == DRAWN:
        heights = typed.curve(drawn)
        places = np.linspace(0, len(heights) - 1, count)
        return spread * np.interp(places, np.arange(len(heights)), heights)
    return stretched(SHAPES[source](count), spread)


def stretched(values: np.ndarray, spread: float) -> np.ndarray:
    """From 0 to `spread`; equal values stay equal."""
    low, wide = values.min(), np.ptp(values)
    return (values - low) * (spread / wide) if wide > 0 else np.zeros_like(values)
