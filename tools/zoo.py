"""Write the accuracies of the leaderboard into docs/normalisers.md.

Run `make zoo` after the leaderboard has changed.
"""

from __future__ import annotations

from pathlib import Path

import sharpmax as sx
from sharpmax._files import write_atomically
from sharpmax.report.blocks import Column, Table
from sharpmax.report.numbers import share
from sharpmax.report.renderers import markdown
from sharpmax.results import Result, schemas

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "normalisers.md"
MARK = "zoo"
NOTHING = "—"
NOT_YET = "not yet"
COLUMNS = {
    "put in": ("drop-in", 1024),
    "trained": ("trained", 1024),
    "augmented": ("augmented", 16_384),
}
"""Tracks, and the size at which their methods differ most."""


def table(result: Result) -> str:
    """Return the table in the order of the registry; no number where the leaderboard has none."""
    board = schemas.Leaderboard.of(result)
    names = ["name", *(f"{name}, {size:,}" for name, (_, size) in COLUMNS.items())]
    columns = [Column(name) for name in names]
    rows = [
        [f"`{name}`", *(accuracy(board, name, *place) for place in COLUMNS.values())]
        for name in sx.NORMALISERS
    ]
    return markdown.table(Table("Normalisers", columns, rows))


def accuracy(board: schemas.Leaderboard, method: str, track: str, size: int) -> str:
    """Return the accuracy of a method; a dash if it cannot take part."""
    row = board.row(track, "max", method)
    if row is None:
        return NOTHING if method in {each.method for each in board.rows} else NOT_YET
    return share(row.mean[board.sizes.index(size)])


def main() -> None:
    """Write the table into the page."""
    result = Result.load(ROOT / "results" / "leaderboard.json")
    new = markdown.replace_marked(PAGE.read_text("utf-8"), MARK, table(result))
    write_atomically(PAGE, new.encode())


if __name__ == "__main__":
    main()
