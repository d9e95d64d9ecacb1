"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sharpmax._errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target and rename, so that a kill leaves the old file or the new one, never
    half of one.
    """
    with writing_atomically(path) as stream:
        stream.write(content)


@contextmanager
def writing_atomically(path: Path) -> Iterator[BinaryIO]:
    """The same for what is too large to be at hand at once: written piece by piece inside the
    block, there when it ends, and gone if it ends by an error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; results are for sharing
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def refuse_overwriting(paths: list[Path], overwrite: bool) -> None:
    """Raise if any of the files exists and the caller did not ask to replace it."""
    existing = [str(path) for path in paths if path.exists()]
    if existing and not overwrite:
        raise UserError(
            f"{', '.join(existing)} exists already: choose another place or ask to overwrite it"
        )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
