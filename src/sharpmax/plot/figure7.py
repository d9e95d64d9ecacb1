"""Figure 7: Figure 2 without and with adaptive temperature."""

from __future__ import annotations

from matplotlib.figure import Figure

from sharpmax.plot._maps import frames
from sharpmax.results import Result


def draw(result: Result) -> Figure:
    """The same sets twice, one block a method."""
    return frames(result, "The same head without and with adaptive temperature")
