"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sharpmax._errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target and rename, so that a kill leaves the old file or the new one, never
    half of one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
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
