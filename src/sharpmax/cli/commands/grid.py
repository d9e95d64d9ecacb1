"""`sharpmax grid`: evaluate or tune several models, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from sharpmax._errors import UserError
from sharpmax.cli.help_format import Command, Group
from sharpmax.cli.options import (
    CONDITION_HELP,
    CheckPrompts,
    Out,
    Overwrite,
    Processes,
    TuningSteps,
    parse_condition,
    parse_length_option,
)
from sharpmax.cli.output import print_written
from sharpmax.cli.progress import job_progress

if TYPE_CHECKING:
    from sharpmax.experiments.grid import Cell

Models: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        help="smollm2, folders with weights, .gguf files or names on the Hugging Face hub.",
        metavar="MODEL...",
    ),
]
Tasks: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--task", help="lookup, passkey, max and so on. Repeat for several.", metavar="NAME"
    ),
]
Seeds: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--seed", help="Seed for the prompts. Repeat for several.", metavar="N"),
]
Ray: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Run on the Ray cluster at this address (host:port or auto) instead of on this "
        "machine. Models must have the same name on all nodes.",
        metavar="ADDRESS",
    ),
]


def evaluate(
    models: Models,
    task: Tasks = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What to compare with plain attention: {CONDITION_HELP} Repeat for several. "
            "Default: tuned.",
            metavar="POLICY",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Prompt lengths, such as 16,32. Default: those of each task.", metavar="LIST"
        ),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Number of prompts per length.", metavar="N", min=1)
    ] = None,
    questions: Annotated[
        int | None, typer.Option(help="Number of questions per prompt.", metavar="N", min=1)
    ] = None,
    seed: Seeds = None,
    out: Out = Path("grid"),
    overwrite: Overwrite = False,
    processes: Processes = None,
    ray: Ray = None,
) -> None:
    """Compare sharpening with plain attention for each model, task and seed.

    Each job compares all policies on the same questions. Writes one result per job and one report
    of all.
    """
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.experiments.grid import Cell
    from sharpmax.hf.evaluate.resolve import resolve_task

    tasks = task or ["lookup"]
    for name in tasks:
        resolve_task(name)
    options = {
        "policies": dict(parse_condition(text) for text in policy or ["tuned"]),
        "lengths": parse_length_option("--lengths", lengths),
        "prompts": prompts,
        "questions": questions,
    }
    cells = [
        Cell(model, name, number, options)
        for model in models
        for name in tasks
        for number in seed or [0]
    ]
    _run(cells, out, overwrite, processes, ray)


def tune(
    models: Models,
    task: Tasks = None,
    steps: TuningSteps = None,
    check_prompts: CheckPrompts = 3,
    seed: Seeds = None,
    out: Out = Path("grid"),
    overwrite: Overwrite = False,
    processes: Processes = None,
    ray: Ray = None,
) -> None:
    """Tune each model with each seed, on a mix of all tasks.

    Writes one calibration per job and one report of all.
    """
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.experiments.grid import Cell
    from sharpmax.hf.evaluate.resolve import resolve_task

    for name in task or ():
        resolve_task(name)
    options: dict[str, Any] = {"check_prompts": check_prompts}
    options |= {} if task is None else {"tasks": task}
    options |= {} if steps is None else {"steps": steps}
    cells = [Cell(model, None, number, options) for model in models for number in seed or [1]]
    _run(cells, out, overwrite, processes, ray)


def _run(
    cells: Sequence[Cell], out: Path, overwrite: bool, processes: int | None, ray: str | None
) -> None:
    """Run the jobs, and write and print what they found."""
    if ray is not None and processes is not None:
        raise UserError(
            f"--processes {processes} is for this machine and --ray {ray} for a cluster, which "
            "runs one job per core: give only one of them"
        )
    from sharpmax import report
    from sharpmax.experiments import grid

    with job_progress("jobs") as progress:
        outcomes = grid.run(
            cells, out, overwrite=overwrite, processes=processes, ray=ray, progress=progress
        )
    found = {str(cell.file): outcome for cell, outcome in zip(cells, outcomes, strict=True)}
    results = {name: outcome for name, outcome in found.items() if not isinstance(outcome, str)}
    for name, outcome in found.items():
        typer.echo(f"\n{name}")
        if isinstance(outcome, str):
            typer.echo(outcome)
        else:
            report.show(outcome)
    written = [out / name for name in results]
    if results:
        # Replaced without asking: it shows the results beside it, and more may have come.
        page = out / "grid.html"
        written.append(
            report.write(list(results.values()), page, names=list(results), overwrite=True)
        )
    print_written(written)


grid = typer.Typer(
    cls=Group,
    help="Evaluate or tune several models at a time.\n\n"
    "One job per core of this machine, or on a Ray cluster. Finished jobs are saved at once: "
    "repeat the command to go on after an interruption, or to add models, tasks and seeds.",
)
grid.command(cls=Command)(evaluate)
grid.command(cls=Command)(tune)
