"""How far jobs that run side by side have come, on standard error: a bar with an estimate, or,
where that is not a terminal, a line for each that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.percentage:3.0f} %"),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
)

STEADY = 120.0
"""Seconds over which the speed is taken: jobs end at different times."""


@contextmanager
def bar(what: str) -> Iterator[Callable[[float], None]]:
    """progress(share): one bar for one piece of work."""
    with Progress(*COLUMNS, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=1.0)
        yield lambda share: shown.update(task, completed=share)


@contextmanager
def bars(of: str = "heads") -> Iterator[Callable[[str, int, int, float], None]]:
    """progress(what, jobs, place, share): a bar for each kind of work, over all of its jobs, which
    are about what `of` says.
    """
    console = Console(stderr=True)
    shown = Progress(
        *COLUMNS,
        console=console,
        transient=True,
        speed_estimate_period=STEADY,
        disable=not console.is_terminal,
    )
    tasks, shares = {}, dict[str, dict[int, float]]()

    def progress(what: str, jobs: int, place: int, share: float) -> None:
        if what not in tasks:
            tasks[what], shares[what] = shown.add_task(what, total=jobs), {}
        ended = share >= 1 > shares[what].get(place, 0.0)
        shares[what][place] = share
        done = sum(share >= 1 for share in shares[what].values())
        description = f"{what} {of}, {done} of {jobs} done"
        shown.update(tasks[what], description=description, completed=sum(shares[what].values()))
        if ended and not console.is_terminal:
            console.print(description)

    with shown:
        yield progress
