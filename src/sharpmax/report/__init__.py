"""Numbers that nobody looks at help nobody: results as one HTML file to open, send and print.

The file carries its own charts and data and never asks the network for anything. The report only
reads results: it sorts, counts and formats what an experiment measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax.report import page, scan
from sharpmax.results import Result

__all__ = ["render", "write"]

KINDS: dict[str, Callable[[Result, str, int], page.Section]] = {"scan": scan.section}


def write(results: Sequence[Result], path: Path, *, overwrite: bool = False) -> Path:
    """Write the results as one self-contained HTML file; replace a file only if asked."""
    path = Path(path)
    refuse_overwriting([path], overwrite)
    write_atomically(path, render(results).encode())
    return path


def render(results: Sequence[Result]) -> str:
    """The HTML page of these results, one section each; the same results give the same text."""
    if not results:
        raise UserError("a report needs at least one result")
    for result in results:
        if result.kind not in KINDS:
            raise UserError(
                f"no report for results of kind {result.kind!r}: expected {', '.join(KINDS)}"
            )
    level = 1 if len(results) == 1 else 2  # several sections stand under one title of the page
    return page.assemble(
        [
            KINDS[result.kind](result, f"{result.kind}-{number}", level)
            for number, result in enumerate(results, start=1)
        ]
    )
