"""Read the files of results from anyone: regular files only, sizes checked before memory is taken.

A result may come from a stranger, and its hash only says that the JSON file and its arrays belong
together. So nothing here trusts a size, a shape or a name that a file states. No pickle is opened:
the header of each array must be the one that NumPy writes for numbers.
"""

from __future__ import annotations

import io
import json
import math
import re
import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from sharpmax._errors import UserError

MAX_JSON_BYTES: Final = 16 << 20
"""Largest JSON file: 50 times the largest of the published results."""

MAX_ARRAY_BYTES: Final = 1 << 30
"""Largest file of arrays, and most bytes of all its arrays together."""

MAX_ARRAYS: Final = 10_000
MAX_DIRECTORY_BYTES: Final = 4 << 20
"""Largest table of contents of a file of arrays: reading it takes ten times the memory."""

NUMBERS: Final = "biuf"
"""Kinds of NumPy's types that results may hold."""

_END_RECORD = struct.Struct("<4s4H2LH")
_ZIP64_LOCATOR_BYTES = 20
_HEADER = re.compile(
    rb"\{'descr': '([<>|][biuf]\d{1,2})', 'fortran_order': (?:True|False), "
    rb"'shape': \(((?:\d{1,19}, ?)*\d{0,19})\), \} *\n"
)


def read_regular_file(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes.

    A pipe would be waited for, and a device may never end.

    Raises:
        UserError: The file is missing, a folder, a pipe or a device, or too large.
    """
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path} is a folder: give the JSON file in it")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is a pipe or a device: save its content to a file first")
    if status.st_size > limit:
        raise UserError(
            f"{path} is not read: it has {status.st_size / 1e6:,.0f} MB, and at most "
            f"{limit / 1e6:,.0f} MB are allowed"
        )
    with path.open("rb") as stream:
        return stream.read(status.st_size)  # of a file that grows meanwhile no more


def parse_json(path: Path, what: str) -> tuple[str, Any]:
    """Return the text of a JSON file and what it holds."""
    try:
        text = read_regular_file(path, MAX_JSON_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not {what}: it is not text") from error
    try:
        return text, json.loads(text)
    except ValueError as error:
        if path.suffix == ".jsonl":
            raise UserError(
                f"{path} is not {what}, but lines of JSON: if it holds the statistics of a "
                "training, sharpmax.hf.read_statistics makes a result of it"
            ) from error
        raise UserError(f"{path} is damaged: not JSON ({error})") from error
    except RecursionError as error:
        raise UserError(f"{path} is damaged: its values are nested too deeply") from error


def unpack_arrays(content: bytes, file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file by name.

    Args:
        content: The bytes of the file.
        file: What errors call it.

    Raises:
        UserError: The file is not what `numpy.savez` writes for numbers, or its arrays are too
            large.
    """
    try:
        _check_directory(content)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if total > MAX_ARRAY_BYTES:
                raise UserError(
                    f"{file} is not read: its arrays have {total / 1e6:,.0f} MB, and at most "
                    f"{MAX_ARRAY_BYTES / 1e6:,.0f} MB are allowed"
                )
            arrays = {
                member.filename.removesuffix(".npy"): _read_array(archive, member)
                for member in members
            }
            if len(arrays) < len(members):
                raise ValueError("two arrays have the same name")
            return arrays
    except UserError:
        raise
    except (
        *(ValueError, TypeError, ArithmeticError, LookupError, EOFError, OSError),
        *(RuntimeError, zipfile.BadZipFile, zlib.error, struct.error),
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{file} is damaged: {reason}") from error


def _check_directory(content: bytes) -> None:
    """Check the record at the end of a zip file before its table of contents is read."""
    if len(content) < _END_RECORD.size:
        raise ValueError("it is not a zip file")
    signature, *_, count, size, _, comment = _END_RECORD.unpack(content[-_END_RECORD.size :])
    if signature != b"PK\5\6" or comment:
        raise ValueError("it is not a zip file as NumPy writes it")
    locator = -_END_RECORD.size - _ZIP64_LOCATOR_BYTES
    large = content[locator : locator + 4] == b"PK\6\7"  # whose numbers would count instead
    if large or count > MAX_ARRAYS or size > MAX_DIRECTORY_BYTES:
        raise ValueError(f"it lists more than {MAX_ARRAYS:,} arrays")


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read an array whose shape and type fit the size of its part of the file."""
    name = member.filename
    if not name.endswith(".npy"):
        raise ValueError(f"{name!r} in it is not an array")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name!r} is compressed in a way that NumPy does not write")
    with archive.open(member) as stream:
        start = stream.read(10)
        length = int.from_bytes(start[8:], "little")
        header = _HEADER.fullmatch(stream.read(length))
        if start[:8] != b"\x93NUMPY\x01\x00" or header is None:
            raise ValueError(f"{name!r} is not an array of numbers")
        shape = [int(size) for size in header[2].split(b",") if size.strip()]
        claimed = math.prod(shape) * np.dtype(header[1].decode()).itemsize
        present = member.file_size - len(start) - length
        if claimed != present:
            raise ValueError(f"{name!r} claims {claimed:,} bytes, and has {present:,}")
        stream.seek(0)
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        return array
