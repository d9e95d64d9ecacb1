"""The README's table of normalisers: each one's formula from its page, its accuracy from the
leaderboard's result.

    make zoo
"""

from __future__ import annotations

import re
from pathlib import Path

from claim_numbers import board_row, share
from marked import filled, markdown

import sharpmax as sx
from sharpmax._files import write_atomically
from sharpmax.results import Result

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


def table(board: Result, page: str) -> str:
    """All normalisers in the registry's order; no number where the leaderboard cannot ask."""
    said = {name: [cell.strip() for cell in cells] for name, *cells in ROW.findall(page)}
    head = [f"{name}, {size:,}" for name, (_, size) in COLUMNS.items()]
    rows = [
        [f"`{name}`", *said[name], *(_accuracy(board, name, *one) for one in COLUMNS.values())]
        for name in sx.NORMALISERS
    ]
    return markdown(["name", "weights", "source", "makes sense", *head], rows)


def _accuracy(board: Result, method: str, track: str, size: int) -> str:
    try:
        row = board_row(board, track, "max", method)
    except LookupError:
        return NOTHING
    place = board.measurements["sizes"].index(size)
    return share(row["mean"][place]) if "mean" in row else NOTHING  # else it says why there is none


def main() -> None:
    readme, page = ROOT / "README.md", ROOT / "docs" / "normalisers.md"
    board = Result.load(ROOT / "results" / "leaderboard.json")
    new = filled(readme.read_text("utf-8"), MARK, table(board, page.read_text("utf-8")))
    write_atomically(readme, new.encode())


if __name__ == "__main__":
    main()
