"""`sharpmax leaderboard`: every way of giving weights on the same tasks, as JSON, PNG and SVG."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import Out, Overwrite, Processes
from sharpmax.cli.reproduce import TRAINING, files_of, show

NAME = "leaderboard"


def leaderboard(
    out: Out = Path("results"),
    overwrite: Overwrite = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="One task, one seed, few steps: minutes, and too little to rank anything. "
            "Results are named leaderboard-quick.",
        ),
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="drop-in (put into a softmax-trained head), trained, augmented (trained on narrow "
            "ranges too) or augmented-drop-in. Repeat for several. Default: all.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="max, second-max or most-frequent. Repeat for several. Default: all.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A normaliser (see docs/normalisers.md), layer-norm or step; softmax is always "
            "there. Repeat for several. Default: all.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Of each training, a multiple of 100. Default: 5000.", show_default=False
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="How many, from 0 up. Default: 3.", min=1, show_default=False),
    ] = None,
    processes: Processes = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run on the Ray cluster at this address, host:port or auto, instead of this "
            "machine's cores.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train and examine every alternative to softmax attention with the same budget.

    Writes leaderboard.json, .png and .svg. Checkpoints and what is finished are kept in
    OUT/training: repeat a command that was stopped, and it goes on. With other methods, tasks or
    tracks than all, what earlier commands have finished there is used too.
    """
    if ray is not None and processes is not None:
        raise UserError(
            f"--processes {processes} is for this machine and --ray {ray} for a cluster, which "
            "has a job a core: give one of them"
        )
    stem = out / (f"{NAME}-quick" if quick else NAME)
    refuse_overwriting(files_of(stem), overwrite)
    # Imported late: `sharpmax --help` should not wait for JAX or the drawing library.
    from sharpmax import plot
    from sharpmax.cli.progress import bars
    from sharpmax.experiments.leaderboard import experiment
    from sharpmax.plot import style

    usual = experiment.QUICK if quick else experiment.Config()
    budget = replace(
        usual.budget,
        steps=usual.budget.steps if steps is None else steps,
        seeds=usual.budget.seeds if seeds is None else tuple(range(seeds)),
    )
    config = experiment.Config(
        budget,
        tracks=tuple(track or usual.tracks),
        tasks=tuple(task or usual.tasks),
        methods=tuple(method or usual.methods),
        rounds=usual.rounds,
    )
    with bars() as progress:
        result = experiment.run(
            config,
            out / TRAINING,
            processes=processes,
            progress=progress,
            ray=ray,
        )
    written = [result.save(stem.with_suffix(".json"), overwrite=overwrite)]
    show(result, written + style.save(plot.draw(result), stem, overwrite=overwrite))
