"""Where a result comes from: the command, the time, the machine and the versions."""

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

from pydantic import BaseModel, ConfigDict, Field

PACKAGES = {
    "numpy": "numpy",
    "torch": "torch",
    "jax": "jax",
    "transformers": "transformers",
    "numba": "numba",
    "scipy": "scipy",
    "dm-clrs": "clrs",
}
"""Packages whose version can change a number, and the module that each provides. A version is
recorded if the process has loaded the module."""


class Provenance(BaseModel):
    """Record where a result comes from.

    Attributes:
        command: The command line that was typed.
        started: When the work started, in UTC.
        seconds: How long the work took.
        sharpmax: The version of sharpmax.
        commit: The commit of the source, with `+changes` if files differed from it; None if
            sharpmax did not run from its own checkout.
        python: The version of Python.
        platform: The operating system.
        processor: The name of the processor.
        cores: The number of cores that the process could use.
        packages: The versions of the packages that can change a number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    command: str
    started: datetime
    seconds: float
    sharpmax: str
    commit: str | None
    python: str
    platform: str
    processor: str
    cores: int = Field(ge=1, le=1_000_000)
    packages: dict[str, str]


class Stopwatch:
    """Measure how long an experiment takes: create it before the work, read it after.

    Examples:
        >>> watch = Stopwatch()
        >>> watch.provenance().seconds < 60
        True
    """

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self._begin = time.perf_counter()

    def provenance(self) -> Provenance:
        """Return the provenance of the work since this stopwatch was created."""
        return Provenance(
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            started=self.started,
            seconds=round(time.perf_counter() - self._begin, 3),
            sharpmax=metadata.version("sharpmax"),
            commit=_commit(),
            python=platform.python_version(),
            platform=platform.platform(),
            processor=processor(),
            cores=cores(),
            packages=_loaded_versions(),
        )


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _loaded_versions() -> dict[str, str]:
    versions = {}
    for package, module in PACKAGES.items():
        if module in sys.modules:
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:  # a module of that name, but not this package
                continue
    return versions


def _commit() -> str | None:
    """Return the commit of this source; None if the package does not run from its own checkout."""
    file = Path(__file__)
    package = file.parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        # Installed into an environment inside another repository, git would name that repository's
        # commit: so check that git tracks this very file.
        git("ls-files", "--error-unmatch", str(file))
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(package))
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    """Return the processor's name, which the standard library leaves empty on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
