"""Progress of a long job, as the share of its work that is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

ProgressCallback = Callable[[float], None]
"""Called with the finished share of a job, from 0 to 1."""


class Progress:
    """Reports the finished share of a job whose steps cost differently much.

    Args:
        callback: Called after each step and part of a step. None reports nothing.
        weights: The cost of each step, in any unit.
    """

    def __init__(self, callback: ProgressCallback | None, weights: Sequence[float]) -> None:
        self._callback = callback
        ends = np.cumsum([0.0, *weights])
        self._ends = ends / max(ends[-1], 1e-300)  # nothing to do is no error
        self._steps = self._parts = 0

    def finish_part(self, parts: int) -> None:
        """Report one of `parts` equal parts of the current step as finished."""
        self._parts = min(self._parts + 1, parts)
        start, end = self._ends[self._steps : self._steps + 2]
        self._report(start + (end - start) * self._parts / parts)

    def finish_step(self) -> None:
        """Report the current step as finished."""
        self._steps, self._parts = self._steps + 1, 0
        self._report(self._ends[self._steps])

    def _report(self, share: float) -> None:
        if self._callback is not None:
            self._callback(float(share))
