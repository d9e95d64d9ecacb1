"""A bar with an estimate for jobs that run side by side, on standard error."""

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
def bars() -> Iterator[Callable[[str, int, int, float], None]]:
    """progress(what, jobs, place, share): a bar for each kind of work, over all of its jobs."""
    shown = Progress(
        *COLUMNS, console=Console(stderr=True), transient=True, speed_estimate_period=STEADY
    )
    tasks, shares = {}, dict[str, dict[int, float]]()

    def progress(what: str, jobs: int, place: int, share: float) -> None:
        if what not in tasks:
            tasks[what], shares[what] = shown.add_task(what, total=jobs), {}
        shares[what][place] = share
        done = sum(share >= 1 for share in shares[what].values())
        shown.update(
            tasks[what],
            description=f"{what} heads, {done} of {jobs} done",
            completed=sum(shares[what].values()),
        )

    with shown:
        yield progress
