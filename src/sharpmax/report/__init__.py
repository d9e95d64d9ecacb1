"""Numbers that nobody looks at help nobody: results as one HTML file to open, send and print.

The file carries its own charts and data and never asks the network for anything. The report only
reads results: it sorts, counts and formats what an experiment measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax.report import (
    bench,
    blocks,
    calibration,
    certify,
    clrs,
    evaluate,
    figure1,
    figure3,
    figure5,
    figure6,
    frames,
    leaderboard,
    page,
    policies,
    scan,
    table1,
    unknowns,
)
from sharpmax.report.calibration import Calibration
from sharpmax.results import Result

__all__ = ["load", "render", "write"]

KINDS: dict[str, Callable[[Result], blocks.Content]] = {
    "bench-jax": bench.attention,
    "bench-max-retrieval": bench.max_retrieval,
    "bench-scan": bench.scan,
    "bench-torch": bench.attention,
    "certify": certify.content,
    "evaluate": evaluate.content,
    "figure1": figure1.content,
    "figure2": frames.content,
    "figure3": figure3.content,
    "figure5": figure5.content,
    "figure6": figure6.content,
    "figure7": frames.content,
    "figure8": clrs.content,
    "leaderboard": leaderboard.content,
    "policies": policies.content,
    "table1": table1.content,
    "unknowns": unknowns.content,
}
"""What each kind of result has to say; a scan has a page of its own making."""


def load(path: Path) -> Result | Calibration:
    """A result or a calibration from its file; anything else is refused with the reason."""
    if calibration.is_one(path):
        return calibration.load(path)
    return Result.load(path)


def write(
    results: Sequence[Result | Calibration],
    path: Path,
    *,
    names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the results as one self-contained HTML file; replace a file only if asked."""
    path = Path(path)
    refuse_overwriting([path], overwrite)
    write_atomically(path, render(results, names=names).encode())
    return path


def render(results: Sequence[Result | Calibration], *, names: Sequence[str] | None = None) -> str:
    """The HTML page of these results, one section each; the same results give the same text.

    `names`, such as those of their files, are what an error calls them.
    """
    if not results:
        raise UserError("a report needs at least one result")
    level = 1 if len(results) == 1 else 2  # several sections stand under one title of the page
    names = [""] * len(results) if names is None else names
    return page.assemble(
        [
            _section(result, f"{result.kind}-{number}", level, name)
            for number, (result, name) in enumerate(zip(results, names, strict=True), start=1)
        ]
    )


def _section(result: Result | Calibration, anchor: str, level: int, name: str) -> page.Section:
    """The piece of the page; a result whose parts are not what its kind has is refused by name."""
    try:
        if isinstance(result, Calibration):
            return blocks.section(calibration.content(result), None, anchor, level)
        if result.kind == "scan":
            return scan.section(result, anchor, level)
        if result.kind not in KINDS:
            known = ", ".join(sorted([*KINDS, "scan"]))
            raise UserError(f"no report for results of kind {result.kind!r}: expected {known}")
        return blocks.section(KINDS[result.kind](result), result, anchor, level)
    except UserError as error:
        raise UserError(f"{name}: {error}" if name else str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{name or 'the result'} is damaged: not what a result of kind {result.kind!r} holds "
            f"({type(error).__name__}: {error}); run its command again"
        ) from error
