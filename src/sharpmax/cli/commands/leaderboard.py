"""`sharpmax leaderboard`: train and compare all normalisers on the same tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sharpmax._errors import UserError
from sharpmax.cli.commands.reproduce import CHECKPOINTS
from sharpmax.cli.options import Out, Overwrite, Processes
from sharpmax.cli.output import claim_files, print_result, result_files, save_result
from sharpmax.cli.progress import job_progress
from sharpmax.results import Result


def leaderboard(
    out: Out = Path("results"),
    overwrite: Overwrite = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Use one task, one seed and few steps: minutes, but not enough to rank methods. "
            "The files are named leaderboard-quick.",
        ),
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="drop-in: replace softmax in a trained head. trained: train with the method. "
            "augmented: train on narrow ranges of values too. augmented-drop-in: drop-in into such "
            "a head. Repeat for several. Default: all.",
            metavar="TRACK",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="max, second-max or most-frequent. Repeat for several. Default: all.",
            metavar="TASK",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A normaliser, layer-norm or step. Repeat for several. softmax is always "
            "included. Default: all.",
            metavar="METHOD",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps per training, a multiple of 100. Default: 5000.", metavar="N"),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(
            help="Items of the sets on which heads are evaluated, smallest first. Repeat for "
            "several. Default: 16, 64, ..., 16384.",
            metavar="N",
            min=5,
        ),
    ] = None,
    sets: Annotated[
        int | None,
        typer.Option(help="Sets per size and seed. Default: 256.", metavar="N", min=1),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds, starting at 0. Default: 3.", metavar="N", min=1),
    ] = None,
    extend: Annotated[
        Path | None,
        typer.Option(
            help="A leaderboard that was made with the same budget: keep its rows, and train only "
            "what it lacks.",
            metavar="FILE",
        ),
    ] = None,
    processes: Processes = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run on the Ray cluster at this address (host:port or auto) instead of on this "
            "machine.",
            metavar="ADDRESS",
        ),
    ] = None,
) -> None:
    """Compare all normalisers on the same tasks and budget.

    Writes leaderboard.json, .png and .svg. Checkpoints and finished parts are kept in OUT/training:
    interrupted runs resume when you run the same command again, and a run with other methods, tasks
    or tracks reuses what is finished there.
    """
    if ray is not None and processes is not None:
        raise UserError(
            f"--processes {processes} is for this machine and --ray {ray} for a cluster, which "
            "runs one job per core: give only one of them"
        )
    # Read before any file is replaced: it may be the one that is written.
    earlier = None if extend is None else Result.load(extend)
    stem = out / ("leaderboard-quick" if quick else "leaderboard")
    with claim_files(result_files(stem), overwrite) as claim:
        # Imported late so that `sharpmax --help` does not wait for JAX.
        from sharpmax.experiments.leaderboard import experiment

        default = experiment.QUICK if quick else experiment.Config()
        budget = replace(
            default.budget,
            steps=default.budget.steps if steps is None else steps,
            sizes=default.budget.sizes if size is None else tuple(sorted(set(size))),
            sets=default.budget.sets if sets is None else sets,
            seeds=default.budget.seeds if seeds is None else tuple(range(seeds)),
        )
        config = experiment.Config(
            budget,
            tracks=tuple(track or default.tracks),
            tasks=tuple(task or default.tasks),
            methods=tuple(method or default.methods),
            rounds=default.rounds,
        )
        with job_progress() as progress:
            result = experiment.run(
                config,
                out / CHECKPOINTS,
                processes=processes,
                progress=progress,
                ray=ray,
                earlier=earlier,
            )
        with claim.writing():
            written = save_result(result, stem, claim.overwrite)
        print_result(result, written)
