"""Save a result with its picture, and print what was written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from sharpmax.results import Result


def result_files(stem: Path) -> list[Path]:
    """Return the files that `save_result` writes: the result and its picture as PNG and SVG."""
    return [stem.with_suffix(suffix) for suffix in (".json", ".png", ".svg")]


def save_result(result: Result, stem: Path, overwrite: bool) -> list[Path]:
    """Write a result and its picture, and return the files.

    The arguments are the result, the path of the files without suffix, and whether to replace
    existing files.
    """
    # Imported late so that `sharpmax --help` does not wait for matplotlib.
    from sharpmax import report

    json_file = result.save(stem.with_suffix(".json"), overwrite=overwrite)
    return [json_file, *report.save_picture(report.draw(result), stem, overwrite=overwrite)]


def print_result(result: Result, written: Iterable[Path]) -> None:
    """Print the tables and sentences of a result, and one line per written file."""
    from sharpmax import report

    report.show(result)
    for path in written:
        typer.echo(path)


def print_written(written: Iterable[Path]) -> None:
    """Print the written files in one line."""
    typer.echo("Written: " + ", ".join(map(str, written)))
