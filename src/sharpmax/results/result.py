"""The file format of results: one JSON file, and an `.npz` file beside it for larger arrays."""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    JsonValue,
    PrivateAttr,
    ValidationError,
)

from sharpmax._errors import UserError
from sharpmax._files import one_writer, refuse_overwriting, remove_leftovers, write_atomically
from sharpmax.results._reading import (
    MAX_ARRAY_BYTES,
    MAX_JSON_BYTES,
    NUMBERS,
    parse_json,
    read_regular_file,
    unpack_arrays,
)
from sharpmax.results.provenance import Provenance

SCHEMA_VERSION: Final = 1
FORMAT: Final = "sharpmax-result"

MAX_INTEGER_BITS: Final = 128
"""Integers of more bits are refused: no measurement has them, and they overflow as floats."""


def _to_json(value: Any, path: str = "") -> Any:
    """Convert tuples, arrays and NumPy numbers to what JSON has.

    NaN and infinity are refused by name: JSON has neither, and pydantic would silently write null.
    So are integers that no number of a computer holds.
    """
    if isinstance(value, Mapping):
        return {str(key): _to_json(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_to_json(inner, f"{path}[{index}]") for index, inner in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path.lstrip('.')} is {value}, which JSON cannot hold; write None")
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise ValueError(
            f"{path.lstrip('.')} has {value.bit_length():,} bits, at most "
            f"{MAX_INTEGER_BITS} are allowed"
        )
    return value


if TYPE_CHECKING:
    Json = dict[str, Any]
else:
    Json = Annotated[dict[str, JsonValue], BeforeValidator(_to_json)]


class Result(BaseModel):
    """Hold the outcome of one experiment, and load and save it.

    Attributes:
        format: Marks the file as a result of sharpmax.
        schema_version: The version of the file format.
        kind: The kind of experiment, such as `scan`; it decides how the result is reported.
        config: What was asked for.
        seeds: The random seeds that were used.
        measurements: What was measured. No NaN and no infinity, which JSON cannot hold.
        provenance: Where the numbers come from: command, machine, versions, duration.
        arrays_file: The name of the `.npz` file beside the JSON file; None without arrays.
        arrays_sha256: The hash of that file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["sharpmax-result"] = FORMAT
    schema_version: Literal[1] = SCHEMA_VERSION
    kind: str
    config: Json
    seeds: tuple[int, ...]
    measurements: Json
    provenance: Provenance
    arrays_file: str | None = None
    arrays_sha256: str | None = None

    _arrays: dict[str, np.ndarray] = PrivateAttr(default_factory=dict)

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The larger measurements by name."""
        return self._arrays

    def with_arrays(self, **arrays: np.ndarray) -> Self:
        """Return the same result with these arrays instead of its own.

        Args:
            **arrays: The arrays by name; numbers only.
        """
        copy = self.model_copy()
        copy._arrays = arrays
        return copy

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the JSON file, and the arrays beside it.

        A kill while writing leaves the old result or the new one, never a mixture.

        Args:
            path: The JSON file to write.
            overwrite: Whether to replace a file that exists.

        Returns:
            The path of the JSON file.

        Raises:
            UserError: The file exists and `overwrite` is False, or the result is too large to be
                read again.
        """
        path = Path(path)
        refuse_overwriting([path], overwrite)
        stored, content = self, b""
        if self._arrays:
            content = _pack(self._arrays)
            digest = hashlib.sha256(content).hexdigest()
            # Named by content: whichever JSON file is there after a kill, its arrays are there too.
            name = f"{path.stem}.{digest[:12]}.npz"
            stored = self.model_copy(update={"arrays_file": name, "arrays_sha256": digest})
        text = (stored.model_dump_json(indent=1) + "\n").encode()
        if len(text) > MAX_JSON_BYTES:
            raise UserError(
                f"the result has {len(text) / 1e6:,.0f} MB without its arrays, at most "
                f"{MAX_JSON_BYTES / 1e6:,.0f} MB can be read again: put large lists into arrays"
            )
        arrays_name = rf"{re.escape(path.stem)}\.[0-9a-f]{{12}}\.npz"
        with one_writer(path.parent):
            # Of other arrays, too: those of a killed process may not be written again.
            remove_leftovers(path.parent, arrays_name)
            if stored.arrays_file is not None and content:
                write_atomically(path.with_name(stored.arrays_file), content)
            write_atomically(path, text)
            for file in path.parent.iterdir():
                if re.fullmatch(arrays_name, file.name) and file.name != stored.arrays_file:
                    file.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result from its JSON file and the arrays beside it.

        Args:
            path: The JSON file.

        Returns:
            The result, as it was saved.

        Raises:
            UserError: The file is missing, damaged, not a result, or of a later version.
        """
        path = Path(path)
        result = read_json(path, cls, FORMAT, "schema_version", SCHEMA_VERSION, "a sharpmax result")
        if result.arrays_file is not None:
            result._arrays = _load_arrays(path, result.arrays_file, result.arrays_sha256)
        return result


Model = TypeVar("Model", bound=BaseModel)


def read_json(
    path: Path, model: type[Model], file_format: str, version_field: str, newest: int, what: str
) -> Model:
    """Read a JSON file of ours, which names its `format` and version, into a pydantic model."""
    text, content = parse_json(path, what)
    if not isinstance(content, dict) or content.get("format") != file_format:
        raise UserError(f'{path} is not {what}: it has no "format": "{file_format}"')
    version = content.get(version_field, newest)
    if type(version) is not int:  # `true` equals 1
        raise UserError(f"{path} is damaged: {version_field}: expected a whole number")
    if version > newest:
        raise UserError(
            f"{path} has {version_field.replace('_', ' ')} {version}, this sharpmax reads up to "
            f"{newest}: upgrade it"
        )
    del content  # not twice in memory
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {first_problem(error)}") from error
    except RecursionError as error:
        raise UserError(f"{path} is damaged: its values are nested too deeply") from error


def first_problem(error: ValidationError) -> str:
    """Return the place and the message of the first problem that pydantic found."""
    first = error.errors()[0]
    location = ".".join(map(str, first["loc"]))
    return f"{location or 'the file'}: {first['msg']}"


def _pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    for name, array in arrays.items():
        if array.dtype.kind not in NUMBERS:
            raise UserError(f"array {name!r} holds {_content(array)}; results hold numbers only")
    total = sum(array.nbytes for array in arrays.values())
    if total > MAX_ARRAY_BYTES * 0.99:  # the headers need some bytes too
        raise UserError(f"the arrays have {total / 1e6:,.0f} MB, too many for a result")
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _content(array: np.ndarray) -> str:
    return "Python objects" if array.dtype.hasobject else str(array.dtype)


def _load_arrays(path: Path, name: str, expected: str | None) -> dict[str, np.ndarray]:
    if not name or "\0" in name or name in (".", "..") or Path(name).name != name:
        raise UserError(f"{path} is damaged: arrays_file {name!r} must be a file name beside it")
    file = path.with_name(name)
    try:
        present = file.exists()
    except OSError as error:
        raise UserError(
            f"{path} is damaged: its arrays_file cannot be read ({error.strerror})"
        ) from error
    if not present:
        raise UserError(f"{path} needs {name} beside it, which is missing: copy both files")
    content = read_regular_file(file, MAX_ARRAY_BYTES)
    if hashlib.sha256(content).hexdigest() != expected:
        raise UserError(f"{file} is damaged: its hash is not the one that {path.name} records")
    return unpack_arrays(content, file)
