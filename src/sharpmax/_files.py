"""Write files atomically and refuse to overwrite them by accident."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from sharpmax._errors import UserError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

SECONDS_PER_DAY = 24 * 60 * 60


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old file or the new one, never half of one.

    Args:
        path: the file; missing folders are created.
        content: all that the file will hold.
    """
    with open_atomically(path) as stream:
        stream.write(content)


@contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be written piece by piece; it appears when the block ends without an error.

    The bytes go to a temporary file in the same folder, which is renamed at the end. Temporary
    files that killed processes have left of the same file are deleted first.

    Args:
        path: the file; missing folders are created.

    Yields:
        The stream to write to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, re.escape(path.name))
    handle, temporary = _create_locked(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if fcntl is not None:  # renamed while it is locked, so that nobody deletes it before
                _publish(temporary, path)
        if fcntl is None:  # Windows renames only what is closed
            _publish(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path, name: str) -> None:
    """Delete temporary files whose writer was killed before it could rename them.

    A writer locks its temporary file, and the system releases the lock of a process that ends.
    Where there are no such locks, files of the last day are kept.

    Args:
        folder: where to look.
        name: a regular expression of the names of the files that were written.
    """
    pattern = re.compile(rf"\.(?:{name})\.[a-z0-9_]{{8}}\.part")
    with os.scandir(folder) as entries:
        leftovers = [folder / entry.name for entry in entries if pattern.fullmatch(entry.name)]
    for leftover in leftovers:
        with suppress(OSError):  # it is in use, or somebody else has deleted it
            if fcntl is None:
                if time.time() - leftover.stat().st_mtime > SECONDS_PER_DAY:
                    leftover.unlink()
                continue
            with leftover.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftover.unlink()


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for this folder, which is created if missing.

    For files that belong together. Does nothing where folders cannot be locked, as on Windows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _create_locked(path: Path) -> tuple[int, Path]:
    """Create a temporary file beside `path` and lock it; return its handle and its path."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        if fcntl is None:
            return handle, Path(name)
        with suppress(OSError):  # a file system without locks, whose leftovers stay
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # another writer took it for a leftover before it was locked


def _publish(temporary: Path, path: Path) -> None:
    temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files
    temporary.replace(path)


def refuse_overwriting(paths: list[Path], overwrite: bool) -> None:
    """Check that none of the files exists, unless the caller asked to overwrite them.

    Args:
        paths: the files that are about to be written.
        overwrite: whether the user allows existing files to be replaced.

    Raises:
        UserError: if a file exists and `overwrite` is false.
    """
    existing = [str(path) for path in paths if path.exists()]
    if existing and not overwrite:
        raise UserError(
            f"{', '.join(existing)} exists already: choose another place or ask to overwrite it"
        )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
