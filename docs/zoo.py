"""The README's table of normalisers: each one's formula from its page, its accuracy from the
leaderboard's result.

    make zoo
"""

from __future__ import annotations

import re
from pathlib import Path

import sharpmax as sx
from sharpmax._files import write_atomically
from sharpmax.results import Result

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- zoo begin -->", "<!-- zoo end -->"
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
    heads = [f"{name}, {size:,}" for name, (_, size) in COLUMNS.items()]
    lines = [
        "| " + " | ".join(["name", "weights", "source", "makes sense", *heads]) + " |",
        "|---" * (4 + len(heads)) + "|",
    ]
    for name in sx.NORMALISERS:
        numbers = [_accuracy(board, name, track, size) for track, size in COLUMNS.values()]
        lines.append("| " + " | ".join([f"`{name}`", *said[name], *numbers]) + " |")
    return "\n".join(lines)


def _accuracy(board: Result, method: str, track: str, size: int) -> str:
    place = board.measurements["sizes"].index(size)
    for row in board.measurements["rows"]:
        same = (row["track"], row["task"], row["method"]) == (track, "max", method)
        if same and "mean" in row:  # else it says why there is none
            return f"{100 * row['mean'][place]:.1f}"
    return "—"


def filled(readme: str, board: Result, page: str) -> str:
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"README.md must have {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table(board, page)}\n\n{end}{after}"


def main() -> None:
    readme, page = ROOT / "README.md", ROOT / "docs" / "normalisers.md"
    board = Result.load(ROOT / "results" / "leaderboard.json")
    new = filled(readme.read_text("utf-8"), board, page.read_text("utf-8"))
    write_atomically(readme, new.encode())


if __name__ == "__main__":
    main()
