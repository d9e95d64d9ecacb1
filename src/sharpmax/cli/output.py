"""Save a result with its picture, and print what was written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from sharpmax._errors import UserError
from sharpmax._files import fcntl, refuse_overwriting
from sharpmax.cli.processes import is_first_process
from sharpmax.results import Result

WRITING = b"writing"
"""What the lock file holds while results are being written."""


class Claim:
    """The right of one command to write its files.

    Attributes:
        overwrite: Whether files that exist may be replaced.
    """

    def __init__(self, handle: int, overwrite: bool) -> None:
        self._handle = handle
        self.unfinished = os.read(handle, len(WRITING)) == WRITING
        """Whether files are being written, or were when an earlier command was stopped."""
        self.overwrite = overwrite or self.unfinished

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Mark the time in which files are written: a command that is stopped may be repeated."""
        if not self.unfinished:
            os.write(self._handle, WRITING)
            os.fsync(self._handle)
        self.unfinished = self.overwrite = True
        yield
        os.ftruncate(self._handle, 0)
        self.unfinished = False


@contextmanager
def claim_files(files: Sequence[Path], overwrite: bool) -> Iterator[Claim]:
    """Let one command at a time write these files, and none replace them unasked.

    A lock file beside the first of them is held until the command ends, and deleted then. A command
    that is stopped while it writes leaves it behind, and the same command may replace what it has
    written when it is repeated.

    Args:
        files: What the command writes, the result first.
        overwrite: Whether the user allows existing files to be replaced.

    Raises:
        UserError: Another command is writing these files, or one exists and `overwrite` is False.
    """
    if not is_first_process():  # the first of the processes of this command claims for all
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            yield Claim(nothing.fileno(), overwrite)
        return
    path = files[0].with_name(f".{files[0].name}.lock")
    created = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _lock(path, files[0])
    claim = Claim(handle, overwrite)
    try:
        refuse_overwriting(list(files), claim.overwrite)
        yield claim
    finally:
        if fcntl is None:  # Windows deletes only what is closed
            os.close(handle)
        if not claim.unfinished:
            path.unlink(missing_ok=True)
        if fcntl is not None:
            os.close(handle)
        for folder in created:
            with suppress(OSError):  # something was written into it
                folder.rmdir()


def _lock(path: Path, result: Path) -> int:
    """Return the handle of a file that no other process has locked; it is created if missing."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if fcntl is None:
            return handle
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise UserError(
                f"{result} is being written by another command: wait for it, or give another --out"
            ) from error
        except OSError:  # a file system without locks
            return handle
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # the command that held it has just deleted it


def result_files(stem: Path) -> list[Path]:
    """Return the files that `save_result` writes: the result and its picture as PNG and SVG."""
    return [stem.with_suffix(suffix) for suffix in (".json", ".png", ".svg")]


def save_result(result: Result, stem: Path, overwrite: bool) -> list[Path]:
    """Write a result and its picture, and return the files.

    The arguments are the result, the path of the files without suffix, and whether to replace
    existing files.
    """
    # Imported late so that `sharpmax --help` does not wait for matplotlib.
    from sharpmax import report

    json_file = result.save(stem.with_suffix(".json"), overwrite=overwrite)
    return [json_file, *report.save_picture(report.draw(result), stem, overwrite=overwrite)]


def print_result(result: Result, written: Iterable[Path]) -> None:
    """Print the tables and sentences of a result, and one line per written file."""
    from sharpmax import report

    report.show(result)
    for path in written:
        typer.echo(path)


def print_written(written: Iterable[Path]) -> None:
    """Print the written files in one line."""
    typer.echo("Written: " + ", ".join(map(str, written)))
