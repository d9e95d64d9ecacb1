"""Tables in Markdown, and the marked places of the docs that programs fill with them."""

from __future__ import annotations

from sharpmax.report.blocks import Cell, Table


def table(block: Table) -> str:
    """Return a table as Markdown, without its title; `|` in a cell is escaped."""
    names = [column.name for column in block.columns]
    lines = [_row(names), "|---" * len(names) + "|"]
    for row in block.rows:
        cells = [cell.text if isinstance(cell, Cell) else cell for cell in block.cells(row)]
        lines.append(_row([cell.replace("|", "\\|") for cell in cells]))
    return "\n".join(lines)


def replace_marked(page: str, name: str, text: str) -> str:
    """Return a page with text between its marks of that name; unchanged if it has no marks.

    The marks are `<!-- NAME begin -->` and `<!-- NAME end -->`.
    """
    before, begin, rest = page.partition(f"<!-- {name} begin -->")
    _, end, after = rest.partition(f"<!-- {name} end -->")
    if not begin or not end:
        return page
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
