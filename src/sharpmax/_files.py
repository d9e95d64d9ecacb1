"""Write files atomically and refuse to overwrite them by accident."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sharpmax._errors import UserError


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

    The bytes go to a temporary file in the same folder, which is renamed at the end.

    Args:
        path: the file; missing folders are created.

    Yields:
        The stream to write to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
