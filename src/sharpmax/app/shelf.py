"""The model that was used last, kept for the next run, and only ever used by one run at a time.

Sharpening a model changes it for as long as it lasts, for all who use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from sharpmax._errors import UserError
from sharpmax.app.runs import Tell, held
from sharpmax.hf.loading.loader import Loaded, load


class Shelf:
    """One model at a time: two may be more than the memory holds."""

    def __init__(self, only: tuple[str, ...] | None = None) -> None:
        self.only = only
        """The names that may be loaded; None for any."""
        self._lock = Lock()
        self._kept: tuple[str, Loaded] | None = None

    @contextmanager
    def taken(self, name: str, tell: Tell) -> Iterator[Loaded]:
        """The model of this name, for the caller alone."""
        name = name.strip()
        if self.only is not None and name not in self.only:
            raise UserError(f"{name!r} is not offered here: choose {' or '.join(self.only)}")
        held(self._lock, tell)
        try:
            tell(0.0)
            if self._kept is None or self._kept[0] != name:
                self._kept = None  # before the next is there
                self._kept = name, load(name)
            yield self._kept[1]
        finally:
            self._lock.release()
