"""Progress on standard error: bars on a terminal, single lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sharpmax.cli.processes import is_first_process

if TYPE_CHECKING:
    from sharpmax.hf.tune.learning import TuningStep

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.percentage:3.0f} %"),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
)

SPEED_PERIOD = 120.0
"""Seconds over which the speed of parallel jobs is averaged: they end at different times."""

LOSS_LINES = 20
"""Number of times that a training prints its loss where there is no terminal."""

LOSS_SMOOTHING = 0.98
"""Weight of the previous value in the running mean of the loss."""


def print_status(line: str) -> None:
    """Print a message on standard error, where it does not mix with results.

    Of several processes the first one prints.
    """
    if is_first_process():
        typer.echo(line, err=True)


def _make_bar(**options: Any) -> Progress:
    """Return a bar on standard error; without a terminal it prints nothing, not even a new line."""
    console = Console(stderr=True)
    return Progress(
        *COLUMNS,
        console=console,
        transient=True,
        disable=not (console.is_terminal and is_first_process()),
        **options,
    )


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[float], None]]:
    """Show one bar; call the yielded function with the share of the work that is done."""
    with _make_bar() as bar:
        task = bar.add_task(description, total=1.0)
        yield lambda share: bar.update(task, completed=share)


@contextmanager
def job_progress(noun: str = "heads") -> Iterator[Callable[[str, int, int, float], None]]:
    """Show one bar per stage of parallel jobs, or print a line per finished job.

    The yielded function is called with the stage, its number of jobs, the index of a job and the
    share of that job that is done.

    Args:
        noun: What the jobs are about, for the description of the bars.
    """
    bar = _make_bar(speed_estimate_period=SPEED_PERIOD)
    tasks, shares = {}, dict[str, dict[int, float]]()

    def update(stage: str, jobs: int, job: int, share: float) -> None:
        if stage not in tasks:
            tasks[stage], shares[stage] = bar.add_task(stage, total=jobs), {}
        just_finished = share >= 1 > shares[stage].get(job, 0.0)
        shares[stage][job] = share
        finished = sum(share >= 1 for share in shares[stage].values())
        description = f"{stage} {noun}, {finished} of {jobs} done"
        bar.update(tasks[stage], description=description, completed=sum(shares[stage].values()))
        if just_finished and bar.disable:
            print_status(description)

    with bar:
        yield update


@contextmanager
def loss_progress(description: str, steps: int) -> Iterator[Callable[[int, float], None]]:
    """Show the progress of a training and its smoothed loss.

    The yielded function is called with the number of finished steps and the loss of the last one.
    """
    smoothed: float | None = None
    with _make_bar() as bar:
        task = bar.add_task(description, total=steps)

        def update(step: int, loss: float) -> None:
            nonlocal smoothed
            previous = loss if smoothed is None else smoothed
            smoothed = LOSS_SMOOTHING * previous + (1 - LOSS_SMOOTHING) * loss
            bar.update(task, completed=step, description=f"{description}, loss {smoothed:.3f}")
            if bar.disable and step % max(1, steps // LOSS_LINES) == 0:
                print_status(f"{description}: step {step:,} of {steps:,}, loss {smoothed:.4f}")

        yield update


@contextmanager
def tuning_progress() -> Iterator[Callable[[TuningStep], None]]:
    """Show the progress of a tuning, and what it has gained at the last validation."""
    with _make_bar() as bar:
        task = bar.add_task("tuning", total=1.0)
        last_validation = None

        def update(step: TuningStep) -> None:
            nonlocal last_validation
            gained = (
                f"log p of an answer's token {-step.nats_before:.2f} → {-step.nats_now:.2f}, "
                f"text {step.divergence:+.4f} nats"
            )
            checking = step.step == step.steps or step.share > step.step / step.steps
            work = "checking" if checking else f"step {step.step:,} of {step.steps:,}"
            bar.update(task, completed=step.share, description=f"{work}: {gained}")
            if bar.disable and gained != last_validation:
                print_status(f"{work}: {gained}")
            last_validation = gained

        yield update
