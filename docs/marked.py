"""Tables that programs write into pages, between two marks that say whose they are."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines])


def filled(text: str, name: str, table: str) -> str:
    """The page with the table between the marks of this name; as it is if it has none."""
    first, last = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        return text
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"
