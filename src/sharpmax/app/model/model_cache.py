"""Keep the last model in memory, and let only one job use it at a time.

Sharpening changes a model for everybody who uses it, for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from sharpmax._errors import UserError
from sharpmax.app.background_jobs import Report, acquire_lock
from sharpmax.hf.loading.loader import Loaded, load


class ModelCache:
    """Holds one model at a time: two may not fit into memory."""

    def __init__(self, allowed: tuple[str, ...] | None = None) -> None:
        self.allowed = allowed
        """Names that may be loaded; None for any."""
        self._lock = Lock()
        self._cached: tuple[str, Loaded] | None = None

    @contextmanager
    def borrow(self, name: str, report: Report) -> Iterator[Loaded]:
        """Load a model, or take it from the cache, for the caller alone.

        Args:
            name: A model name, as for `sharpmax.hf.load`.
            report: Called while waiting for another job, so that this one can be stopped.
        """
        name = name.strip()
        if self.allowed is not None and name not in self.allowed:
            raise UserError(f"{name!r} is not offered here: choose {' or '.join(self.allowed)}")
        acquire_lock(self._lock, report)
        try:
            report(0.0)
            if self._cached is None or self._cached[0] != name:
                self._cached = None  # free the memory before the next model is loaded
                self._cached = name, load(name)
            yield self._cached[1]
        finally:
            self._lock.release()
