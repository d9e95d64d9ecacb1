"""Write the README's table of normalisers: formulas from their page, accuracy from the leaderboard.

Run `make zoo` after the leaderboard or docs/normalisers.md has changed.
"""

from __future__ import annotations

import re
from pathlib import Path

import sharpmax as sx
from sharpmax._files import write_atomically
from sharpmax.report.blocks import Column, Table
from sharpmax.report.numbers import share
from sharpmax.report.renderers import markdown
from sharpmax.results import Result, schemas

ROOT = Path(__file__).parents[1]
MARK = "zoo"
NOTHING = "—"
COLUMNS = {
    "put in": ("drop-in", 1024),
    "trained": ("trained", 1024),
    "augmented": ("augmented", 16_384),
}
"""Tracks, and the size at which their methods differ most."""
ROW = re.compile(r"^\| `([\w-]+)` \|([^|]*)\|[^|]*\|([^|]*)\|([^|]*)\|[^|]*\|$", re.M)
"""A row of docs/normalisers.md."""


def table(result: Result, page: str) -> str:
    """Return the table in the order of the registry; no number where the leaderboard has none."""
    board = schemas.Leaderboard.of(result)
    described = {name: [cell.strip() for cell in cells] for name, *cells in ROW.findall(page)}
    names = ["name", "weights", "source", "makes sense"]
    names += [f"{name}, {size:,}" for name, (_, size) in COLUMNS.items()]
    rows = [
        [f"`{name}`", *described[name], *(accuracy(board, name, *one) for one in COLUMNS.values())]
        for name in sx.NORMALISERS
    ]
    return markdown.table(Table("Normalisers", [Column(name) for name in names], rows))


def accuracy(board: schemas.Leaderboard, method: str, track: str, size: int) -> str:
    """Return the accuracy of a method; a dash if it did not take part."""
    row = board.row(track, "max", method)
    return NOTHING if row is None else share(row.mean[board.sizes.index(size)])


def main() -> None:
    """Write the table into the README."""
    readme, page = ROOT / "README.md", ROOT / "docs" / "normalisers.md"
    result = Result.load(ROOT / "results" / "leaderboard.json")
    text = table(result, page.read_text("utf-8"))
    new = markdown.replace_marked(readme.read_text("utf-8"), MARK, text)
    write_atomically(readme, new.encode())


if __name__ == "__main__":
    main()
