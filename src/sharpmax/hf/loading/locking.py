"""A lock beside a file or folder that one process makes while others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Let one process make the target at a time; the others wait and then find it."""
    file = target.with_name(f"{target.name}.lock")
    with FileLock(file):
        try:
            yield
        finally:
            # Processes that wait for the file notice, and lock a new one.
            with suppress(OSError):
                file.unlink()
