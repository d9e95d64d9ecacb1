"""`sharpmax report`: results of any kind as one page to open, send and print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Files that scan, certify, evaluate, calibrate, reproduce, leaderboard or clrs "
            "evaluate wrote, such as scan/scan.json; several become sections of one page.",
            metavar="RESULT...",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it is there already.")
    ] = False,
) -> None:
    """Turn results into one HTML file: what was found in sentences, charts to point at, maps of
    heads to click, tables that sort, and the command that made each number. It needs no network
    and no server: open it from disk, send it, print it.
    """
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: name the HTML file to write in it")
    refuse_overwriting([out], overwrite)
    from sharpmax import report

    loaded = [report.load(path) for path in results]
    written = report.write(loaded, out, names=[str(path) for path in results], overwrite=overwrite)
    size = written.stat().st_size / 1e6
    sections = f"{len(loaded)} results" if len(loaded) > 1 else loaded[0].kind
    typer.echo(f"Written: {written} ({sections}, {size:.1f} MB). Open it in a browser.")
