"""Tiny packages in a folder that pip takes for an index, and the catalogue entry for them."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from sharpmax.hf.loading.catalogue import CatalogueModel, Package

CONTENT = bytes(range(256)) * 40
"""What the parts give."""


def write_wheel(folder: Path, name: str, member: str, content: bytes) -> Package:
    """Write a wheel with one file, and return the package that it is."""
    folder.mkdir(exist_ok=True)
    module, version = name.replace("-", "_"), "1.0"
    info = f"{module}-{version}.dist-info"
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    raw = wheel.read_bytes()
    return Package(name, version, len(raw), hashlib.sha256(raw).hexdigest(), member)


def write_packages(folder: Path, content: bytes = CONTENT, parts: int = 3) -> CatalogueModel:
    """Write the parts of a file as wheels, and return the catalogue entry of the model."""
    size = -(-len(content) // parts)
    packages = tuple(
        write_wheel(
            folder,
            f"tiny-part{number}",
            f"tiny_part{number}/data/part{number}",
            content[size * (number - 1) : size * number],
        )
        for number in range(1, parts + 1)
    )
    return CatalogueModel(
        name="Tiny",
        title="Tiny (from PyPI)",
        packages=packages,
        file="tiny.gguf",
        file_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        converted_bytes=100_000,
        parameters=1_000,
        context=64,
        licence="Tiny terms, https://example.org/terms",
        notes=("tiny",),
    )
