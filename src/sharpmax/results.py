"""Results as data: what was measured, with which settings, by which versions, in how long.

Every experiment returns a `Result`; pictures, reports and tables only read them. One JSON file,
validated on reading and on writing, with the larger arrays beside it in an `.npz` whose hash the
JSON carries.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

import numpy as np

from sharpmax._errors import MissingExtraError, UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax._provenance import Provenance, Stopwatch

try:
    from pydantic import (
        BaseModel,
        BeforeValidator,
        ConfigDict,
        JsonValue,
        PrivateAttr,
        ValidationError,
    )
except ModuleNotFoundError as error:
    raise MissingExtraError("pydantic", "cli", "reading and writing results") from error

SCHEMA_VERSION: Final = 1
MARK: Final = "sharpmax-result"

__all__ = ["Provenance", "Result", "Stopwatch"]


def _plain(value: Any, where: str = "") -> Any:
    """Tuples and NumPy numbers as JSON has them.

    NaN and infinity are refused by name: JSON has neither, and pydantic would silently write null.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(inner, f"{where}[{place}]") for place, inner in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where.lstrip('.')} is {value}, which JSON cannot hold; write None")
    return value


if TYPE_CHECKING:
    Json = dict[str, Any]
else:
    Json = Annotated[dict[str, JsonValue], BeforeValidator(_plain)]


class Result(BaseModel):
    """One experiment's outcome: config, seeds, measurements, provenance."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["sharpmax-result"] = MARK
    schema_version: Literal[1] = SCHEMA_VERSION
    kind: str
    """What kind of experiment; decides how it is drawn."""
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
        """The same result carrying these arrays."""
        copy = self.model_copy()
        copy._arrays = arrays
        return copy

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the JSON and the arrays beside it, whole; replace a file only if asked."""
        path = Path(path)
        refuse_overwriting([path], overwrite)
        previous = _arrays_of(path)
        stored = self
        if self._arrays:
            content = _packed(self._arrays)
            digest = hashlib.sha256(content).hexdigest()
            # Named by content: whichever JSON is there after a kill, the arrays that it names are
            # there too.
            name = f"{path.stem}.{digest[:12]}.npz"
            write_atomically(path.with_name(name), content)
            stored = self.model_copy(update={"arrays_file": name, "arrays_sha256": digest})
        write_atomically(path, (stored.model_dump_json(indent=1) + "\n").encode())
        if previous is not None and previous.name != stored.arrays_file:
            previous.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result back; a file that is damaged, foreign or too new is refused with the
        reason.
        """
        path = Path(path)
        result = read_marked(path, cls, MARK, "schema_version", SCHEMA_VERSION, "a sharpmax result")
        if result.arrays_file is not None:
            result._arrays = _load_arrays(path, result.arrays_file, result.arrays_sha256)
        return result


Model = TypeVar("Model", bound=BaseModel)


def read_marked(
    path: Path, kind: type[Model], mark: str, version_field: str, newest: int, what: str
) -> Model:
    """A file of ours, told by its `format`; one that is damaged, foreign or too new is refused with
    the reason.
    """
    content = _read_json(path, what)
    if not isinstance(content, dict) or content.get("format") != mark:
        raise UserError(f'{path} is not {what}: it has no "format": "{mark}"')
    version = content.get(version_field)
    if isinstance(version, int) and version > newest:
        raise UserError(
            f"{path} has {version_field.replace('_', ' ')} {version}, this sharpmax reads up to "
            f"{newest}: upgrade it"
        )
    try:
        return kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path} is damaged: {where or 'the file'}: {first['msg']}") from error


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise UserError(f"array {name!r} holds Python objects; results hold numbers only")
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _load_arrays(path: Path, name: str, expected: str | None) -> dict[str, np.ndarray]:
    if Path(name).name != name:
        raise UserError(f"{path} is damaged: arrays_file {name!r} must be a file name beside it")
    beside = path.with_name(name)
    try:
        content = beside.read_bytes()
    except FileNotFoundError as error:
        raise UserError(
            f"{path} needs {name} beside it, which is missing: copy both files"
        ) from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise UserError(f"{beside} is damaged: its hash is not the one that {path.name} records")
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return dict(stored)


def _arrays_of(path: Path) -> Path | None:
    """The array file that the result being replaced names, if it is one of ours."""
    try:
        name = json.loads(path.read_text("utf-8")).get("arrays_file")
    except (OSError, ValueError, AttributeError):
        return None
    ours = isinstance(name, str) and name.startswith(f"{path.stem}.") and name.endswith(".npz")
    return path.with_name(name) if ours and Path(name).name == name else None


def _read_json(path: Path, what: str) -> Any:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder: give the JSON file in it") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not {what}: it is not text") from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is damaged: not JSON ({error})") from error
