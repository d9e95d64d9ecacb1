"""Describe results in words, tables and charts, and render them.

What a result says is written once, in `sharpmax.report.kinds`. `sharpmax.report.renderers` shows it
as an HTML report, a picture, terminal tables or Markdown, with the same words, names and colours.
Nothing is computed but orders, counts and means.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax.report.kinds import compare, describe, importance
from sharpmax.results import Calibration, Result
from sharpmax.results.calibration import is_calibration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["describe", "draw", "load", "render", "save_picture", "show", "write"]


def load(path: str | Path) -> Result | Calibration:
    """Load a result or a calibration from its file.

    Args:
        path: The JSON file.

    Returns:
        What the file holds.

    Raises:
        UserError: The file is missing, damaged, neither of the two, or of a later version.
    """
    return Calibration.load(path) if is_calibration(path) else Result.load(path)


def write(
    results: Sequence[Result | Calibration],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write results as one HTML file that opens from disk in any browser.

    Args:
        results: One or more results; each becomes a section.
        path: The HTML file to write.
        names: What an error calls the results, such as the names of their files.
        overwrite: Whether to replace a file that exists.

    Returns:
        The path of the HTML file.

    Raises:
        UserError: The file exists and `overwrite` is False, or a result cannot be described.
    """
    path = Path(path)
    refuse_overwriting([path], overwrite)
    write_atomically(path, render(results, names=names).encode())
    return path


def render(results: Sequence[Result | Calibration], *, names: Sequence[str] | None = None) -> str:
    """Return the HTML page of some results; the same results give the same text.

    Args:
        results: One or more results; each becomes a section, the most important first. Two scans of
            the same inputs are also compared: the first given is "before".
        names: What an error calls the results, such as the names of their files.

    Returns:
        The text of the page.

    Raises:
        UserError: There is no result, or one of them cannot be described.
    """
    from sharpmax.report.renderers import html

    if not results:
        raise UserError("a report needs at least one result")
    names = [""] * len(results) if names is None else names
    pairs = sorted(zip(results, names, strict=True), key=lambda pair: importance(pair[0]))
    sections = [(describe(result, name), result) for result, name in pairs]
    # In the order in which they were given: the first is "before".
    comparison = compare(results)
    return html.page(sections, comparison)


def draw(result: Result | Calibration) -> Figure:
    """Draw the picture of a result.

    Args:
        result: A result with charts or maps.

    Returns:
        The picture, a matplotlib figure that no window shows.

    Raises:
        UserError: The result cannot be described, or has no charts.
    """
    from sharpmax.report.renderers import matplotlib

    return matplotlib.draw(describe(result), result.kind)


def save_picture(figure: Figure, stem: str | Path, *, overwrite: bool = False) -> list[Path]:
    """Save a picture as PNG and as SVG, the same bytes for the same picture.

    Args:
        figure: The picture.
        stem: The path of the files without their suffix.
        overwrite: Whether to replace files that exist.

    Returns:
        The two paths.

    Raises:
        UserError: A file exists and `overwrite` is False.
    """
    from sharpmax.report.renderers import matplotlib

    return matplotlib.save(figure, Path(stem), overwrite=overwrite)


def show(result: Result | Calibration) -> None:
    """Print the tables and the sentences of a result in the terminal.

    Args:
        result: A result or a calibration.

    Raises:
        UserError: The result cannot be described.
    """
    from sharpmax.report.renderers import terminal

    terminal.show(describe(result))
