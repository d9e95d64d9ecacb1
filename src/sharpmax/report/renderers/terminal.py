"""Results in the terminal: their tables and sentences, for 80 columns."""

from __future__ import annotations

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from sharpmax.report.blocks import Cell, Content, Table


def show(content: Content) -> None:
    """Print a result: its title, its tables, what they mean and what to do."""
    console = Console(highlight=False, emoji=False, markup=False)
    for part in parts(content):
        console.print(part)


def parts(content: Content) -> list[RenderableType]:
    """Return what is printed, from top to bottom."""
    lines: list[RenderableType] = [Text(content.title, style="bold"), " · ".join(content.facts), ""]
    for block in content.blocks:
        if isinstance(block, Table) and block.terminal:
            lines += [Text(block.title, style="bold"), table(block)]
            lines += [block.caption, ""] if block.caption else [""]
    lines += content.sentences
    lines.append(Text(content.verdict.sentence, style="bold"))
    lines += [f"Next: {command}" for command in content.verdict.command.splitlines()]
    return [*lines, *(f"Note: {note}" for note in content.notes)]


def table(block: Table) -> RichTable:
    """Return a table with the columns that a terminal has room for."""
    shown = [index for index, column in enumerate(block.columns) if column.short != ""]
    made = RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for index in shown:
        column = block.columns[index]
        number = column.digits is not None
        heading = column.name if column.short is None else column.short
        made.add_column(heading, justify="right" if number else "left", no_wrap=number)
    for row in block.rows:
        cells = [cell.text if isinstance(cell, Cell) else cell for cell in block.cells(row)]
        made.add_row(*(Text(cells[index]) for index in shown))
    return made
