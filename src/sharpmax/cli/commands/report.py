"""`sharpmax report`: render results of any kind as one HTML file."""

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
            help="Result files, such as scan/scan.json or a calibration. Several files become "
            "sections of one report; two scans of the same prompts are also compared.",
            metavar="RESULT...",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="HTML file to write.", metavar="FILE")
    ] = Path("report.html"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
    ] = False,
) -> None:
    """Render results as one HTML file to open or send.

    The report has a summary in sentences, interactive charts, sortable tables and the command that
    produced each number. It works offline and needs no server.
    """
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: name the HTML file to write in it")
    refuse_overwriting([out], overwrite)
    from sharpmax import report
    from sharpmax.report.kinds.scan_comparison import refuse_comparison
    from sharpmax.results import Result

    loaded = [report.load(path) for path in results]
    written = report.write(loaded, out, names=[str(path) for path in results], overwrite=overwrite)
    size = written.stat().st_size / 1e6
    content = f"{len(loaded)} results" if len(loaded) > 1 else loaded[0].kind
    scans = [one for one in loaded if isinstance(one, Result) and one.kind == "scan"]
    if len(scans) == 2 and (reason := refuse_comparison(scans)):
        typer.echo(f"The two scans are not compared: {reason}.")
    typer.echo(f"Written: {written} ({content}, {size:.1f} MB). Open it in a browser.")
