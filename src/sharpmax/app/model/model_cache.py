"""Keep the last model in memory, and let only one job use it at a time.

Sharpening changes a model for everybody who uses it, for as long as it lasts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharpmax._errors import UserError
from sharpmax._ranges import shorten
from sharpmax.app.background_jobs import JobLock, Report
from sharpmax.app.input_parsing import MAX_LINE, check_text
from sharpmax.hf.loading.loader import DEFAULT, Loaded, load

logger = logging.getLogger(__name__)

REFUSAL_SECONDS = 1.0
"""How long it takes at least to refuse a model, so that the time does not tell what exists."""


@dataclass(frozen=True)
class Lent:
    """A model that one job may use, and what it calls to report its progress meanwhile."""

    loaded: Loaded
    report: Report


class NotLoadedError(UserError):
    """A model that a user has named was not loaded."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(
            f"{name!r} cannot be loaded: expected {DEFAULT}, a folder with a model, or a name on "
            "the Hugging Face hub. The reason is in the terminal where the explorer runs."
        )
        self.seconds = seconds
        """How long the attempt took."""


class ModelCache:
    """Holds one model at a time: two may not fit into memory."""

    def __init__(
        self,
        allowed: tuple[str, ...] | None = None,
        *,
        own: str = DEFAULT,
        job_seconds: float | None = None,
    ) -> None:
        self.allowed = allowed
        """Names that may be loaded; None for any."""
        self.own = own
        """The name that the page was started with: why it cannot be loaded is no secret."""
        self.job_seconds = job_seconds
        """How long a job may use the model; None for as long as it takes."""
        self._lock = JobLock()
        self._cached: tuple[str, Loaded] | None = None

    @contextmanager
    def borrow(self, name: object, report: Report) -> Iterator[Lent]:
        """Load a model, or take it from the cache, for the caller alone.

        Args:
            name: A model name, as for `sharpmax.hf.load`; from the browser, so of any type.
            report: Called while waiting for another job, so that this one can be stopped.
        """
        name = check_text("the model's name", name, MAX_LINE).strip()
        if not name:
            raise UserError(f"type the name of a model, such as {DEFAULT}")
        if self.allowed is not None and name not in self.allowed:
            raise UserError(
                f"{shorten(name)!r} is not offered here: choose {' or '.join(self.allowed)}"
            )
        try:
            with self._lock.hold(report):
                yield Lent(self._get(name), self._with_time_limit(report))
        except NotLoadedError as error:
            time.sleep(max(0.0, REFUSAL_SECONDS - error.seconds))
            raise

    def _get(self, name: str) -> Loaded:
        """Return the cached model if it is the one; otherwise load it."""
        if self._cached is None or self._cached[0] != name:
            self._cached = None  # free the memory before the next model is loaded
            self._cached = name, load(name) if name in (self.own, DEFAULT) else _load_other(name)
        return self._cached[1]

    def _with_time_limit(self, report: Report) -> Report:
        """Return a report that ends the job when it has used the model for too long."""
        if self.job_seconds is None:
            return report
        seconds = self.job_seconds
        end = time.monotonic() + seconds

        def report_in_time(share: float) -> None:
            if time.monotonic() > end:
                raise UserError(
                    f"this took longer than {seconds:g} seconds, the limit of a shared page: use "
                    "fewer or smaller lengths, or write fewer tokens"
                )
            report(share)

        return report_in_time


def _load_other(name: str) -> Loaded:
    """Load any model; the page does not tell why it failed, which would tell what files exist."""
    start = time.monotonic()
    try:
        _refuse_special_files(name)
        return load(name)
    except Exception as error:  # an unexpected one would tell as much
        logger.warning("the model %r was not loaded: %s", name, " ".join(str(error).split()))
        raise NotLoadedError(name, time.monotonic() - start) from None


def _refuse_special_files(name: str) -> None:
    """Refuse pipes and devices: reading one may never end, while others wait for the model."""
    path = Path(name).expanduser()
    for file in path.iterdir() if path.is_dir() else [path]:
        if file.exists() and not file.is_file() and not file.is_dir():
            raise UserError(f"{file} is a pipe or a device: give a folder of regular files")
