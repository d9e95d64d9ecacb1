"""Where a result comes from: what was typed, when, on what machine, with which versions."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from sharpmax._errors import MissingExtraError

try:
    from pydantic import BaseModel, ConfigDict
except ModuleNotFoundError as error:
    raise MissingExtraError("pydantic", "cli", "reading and writing results") from error

PACKAGES = ("numpy", "torch", "jax", "transformers", "numba", "scipy", "dm-clrs")
"""Packages whose version can change a number; recorded if the process has loaded them."""


class Provenance(BaseModel):
    """Where a result comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    """What was typed."""
    started: datetime
    seconds: float
    sharpmax: str
    commit: str | None
    """The commit of the source, with `+changes` if files differed from it; None outside a checkout.
    """
    python: str
    platform: str
    processor: str
    cores: int
    packages: dict[str, str]


class Stopwatch:
    """Started before the work, asked for the provenance after it."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self._begin = time.perf_counter()

    def provenance(self) -> Provenance:
        return Provenance(
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            started=self.started,
            seconds=round(time.perf_counter() - self._begin, 3),
            sharpmax=metadata.version("sharpmax"),
            commit=_commit(),
            python=platform.python_version(),
            platform=platform.platform(),
            processor=_processor(),
            cores=cores(),
            packages=_loaded_versions(),
        )


def _loaded_versions() -> dict[str, str]:
    modules = {"dm-clrs": "clrs"}
    return {
        package: metadata.version(package)
        for package in PACKAGES
        if modules.get(package, package) in sys.modules and _installed(package)
    }


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _commit() -> str | None:
    """The commit of this source; None when the package does not run from its own checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        # Installed into an environment inside someone else's repository, that repository is not the
        # answer.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(folder))
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    """The processor's name; the standard library leaves it empty on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
