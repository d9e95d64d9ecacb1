"""What a folder of CLRS-Text holds: how it was made, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sharpmax._errors import UserError
from sharpmax._files import write_atomically

NAME = "manifest.json"
FORMAT = "sharpmax-clrs-text"
VERSION = 1


@dataclass(frozen=True)
class File:
    """The samples of one algorithm."""

    name: str
    sizes: tuple[int, ...]
    rows: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The settings of a generation, and what it has finished."""

    split: str
    sizes: dict[str, tuple[int, ...]]
    """Wanted, by algorithm."""
    seeds: tuple[int, ...]
    samples: int
    """For each algorithm, size and seed."""
    decimals: int
    versions: dict[str, str]
    """Of the packages that decide the bytes."""
    files: dict[str, File] = field(default_factory=dict)
    """By algorithm."""

    @property
    def sha256(self) -> str:
        """Of all files: the same for the same samples."""
        lines = [f"{name} {file.sha256}" for name, file in sorted(self.files.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def complete(self) -> bool:
        return set(self.files) == set(self.sizes)

    def made_like(self, other: Manifest) -> bool:
        """Whether the two differ in nothing but what is finished."""
        return {**asdict(self), "files": None} == {**asdict(other), "files": None}

    def save(self, folder: Path) -> None:
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self)}
        content["sha256"] = self.sha256 if self.complete else None
        write_atomically(folder / NAME, (json.dumps(content, indent=1) + "\n").encode())


def load(folder: Path) -> Manifest:
    """The manifest of a folder; one that is damaged or foreign is refused."""
    path = folder / NAME
    try:
        content = json.loads(path.read_text("utf-8"))
        found, version = content.pop("format", None), content.pop("version", None)
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}): generate the data again") from error
    if found != FORMAT or version != VERSION:
        raise UserError(f"{path} is not a manifest of CLRS-Text that this sharpmax reads")
    expected = content.pop("sha256", None)
    try:
        files = {
            name: File(**{**file, "sizes": tuple(file["sizes"])})
            for name, file in content.pop("files").items()
        }
        sizes = {name: tuple(some) for name, some in content.pop("sizes").items()}
        seeds = tuple(content.pop("seeds"))
        manifest = Manifest(sizes=sizes, seeds=seeds, files=files, **content)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}): generate the data again") from error
    if manifest.complete and manifest.sha256 != expected:
        raise UserError(f"{path} is damaged: its hash is not that of its files")
    return manifest
