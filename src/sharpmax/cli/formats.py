"""How numbers and tables look in the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table


def percent(mean: float, std: float | None = None) -> str:
    """A share as points, with its spread over seeds."""
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def chance(p: float | None, digits: int = 2) -> str:
    """p of a test; a dash where there was nothing to test."""
    return "-" if p is None else f"{p:.{digits}g}"


def new_table(title: str | None) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
