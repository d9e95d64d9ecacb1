"""Figure 2: the max-retrieval head's attention as its set grows."""

from __future__ import annotations

from matplotlib.figure import Figure

from sharpmax.plot._maps import frames
from sharpmax.results import Result


def draw(result: Result) -> Figure:
    """Rows are random sets, columns their items of highest priority."""
    return frames(result, "A head that finds the maximum, as its set grows")
