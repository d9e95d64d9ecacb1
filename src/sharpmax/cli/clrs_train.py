"""`sharpmax clrs train`: both attentions, from any number of seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from sharpmax._errors import UserError
from sharpmax.cli.clrs_options import DATA, Algorithm, Sizes
from sharpmax.cli.options import numbers
from sharpmax.cli.progress import COLUMNS
from sharpmax.cli.scan import say

LINES = 20
"""How often a training tells its loss where there is no terminal."""


def train(
    data: Annotated[str, typer.Argument(help=DATA.format("train"), metavar="DATA")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for models and checkpoints.")
    ] = Path("clrs-models"),
    attention: Annotated[
        list[str] | None,
        typer.Option(
            help="softmax or adaptive (temperature, in all heads). Repeat for several. Default: "
            "both.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Of weights and order, such as 0-1; each is a training.")
    ] = "0",
    algorithm: Algorithm = None,
    sizes: Sizes = None,
    samples: Annotated[
        list[str] | None,
        typer.Option(
            help="Use at most so many for each algorithm and size: N, or NAME=N for one algorithm. "
            "Repeat for several. What has more is seen more often.",
            metavar="N|NAME=N",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="small (a Gemma made here), a folder, or a name on the hub: google/gemma-2b is "
            "the paper's."
        ),
    ] = "small",
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="For small: characters, pieces (digit by digit) or pairs (of digits). Default: "
            "pairs.",
            metavar="characters|pieces|pairs",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="For small: what differs from width=128,layers=4,heads=4,key_heads=4,"
            "head_size=32,inner=256,context=8192,rope_theta=10000.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(help="Samples a step.", show_default=False)] = None,
    micro: Annotated[
        int | None,
        typer.Option(help="Samples at a time, at most, over all devices.", show_default=False),
    ] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(help="Default: adamw.", metavar="adamw|muon", show_default=False),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(show_default=False)] = None,
    growing: Annotated[
        float | None,
        typer.Option(
            help="Share of the steps in which sizes are let in, the smallest first.",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Of the products.", metavar="auto|float32|bfloat16")
    ] = "auto",
    saving_memory: Annotated[
        bool, typer.Option("--saving-memory", help="Compute activations twice, keep none.")
    ] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Steps.", min=1)] = 500,
    threads: Annotated[
        int | None, typer.Option(help="On a CPU. Default: as torch has it.", min=1)
    ] = None,
) -> None:
    """Fine-tune a decoder on CLRS-Text, with ordinary and with adaptive attention.

    The loss is that of the answers. Each training has a folder in OUT with its model, its losses
    and a checkpoint: repeat a command that was stopped, and it goes on. For several devices or
    machines, start it with accelerate launch, or on CPUs with torchrun.
    """
    import torch

    from sharpmax.experiments.clrs_text import config
    from sharpmax.experiments.clrs_text import train as training
    from sharpmax.experiments.clrs_text.data import load_samples

    if threads is not None:
        torch.set_num_threads(threads)
    given = {
        "steps": steps,
        "batch": batch,
        "micro": micro,
        "optimiser": optimiser,
        "learning_rate": learning_rate,
        "growing": growing,
        "vocabulary": vocabulary,
        "shape": None if shape is None else config.parse_shape(shape),
    }
    if model != config.SMALL:
        strange = [name for name in ("vocabulary", "shape") if given[name] is not None]
        if strange:
            raise UserError(f"--{strange[0]} goes with --model small, not with {model}")
    asked = {name: value for name, value in given.items() if value is not None}
    wanted = [
        config.Training(
            attention=name,
            model=model,
            precision=precision,
            saving_memory=saving_memory,
            **asked,  # type: ignore[arg-type]
        )
        for name in attention or ("softmax", "adaptive")
    ]
    for one in wanted:
        one.check()
    source = load_samples(
        data,
        "train",
        algorithms=algorithm or (),
        sizes=() if sizes is None else numbers("--sizes", sizes),
        **_limits(samples or []),
    )
    for seed in numbers("--seeds", seeds):
        for one in wanted:
            job = training.Job(one, seed, source, out)
            with _losses(f"{one.attention}, seed {seed}", one.steps) as progress:
                result = training.run(job, progress=progress, checkpoint_every=checkpoint_every)
            if os.environ.get("RANK", "0") != "0":  # of several processes the first one speaks
                continue
            loss, seconds = (result.measurements[name] for name in ("last_loss", "seconds"))
            typer.echo(f"{job.folder}: loss {loss:.4f} at the end, {seconds / 60:.1f} minutes")


def _limits(texts: list[str]) -> dict[str, Any]:
    """How many samples to read, in all and of some algorithms."""
    limit, limits = None, {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not number.isdecimal() or int(number) < 1:
            raise UserError(f"--samples {text}: expected a number, 1 or more, or NAME=NUMBER")
        if name:
            limits[name] = int(number)
        else:
            limit = int(number)
    return {"limit": limit, "limits": limits}


@contextmanager
def _losses(what: str, steps: int) -> Iterator[Callable[[int, float], None]]:
    """A bar with the loss, smoothed; or a line now and then where there is no terminal."""
    console = Console(stderr=True)
    smooth = 0.0
    with Progress(
        *COLUMNS, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=steps)
        first = True

        def progress(step: int, loss: float) -> None:
            nonlocal smooth, first
            smooth, first = (loss if first else 0.98 * smooth + 0.02 * loss), False
            bar.update(task, completed=step, description=f"{what}, loss {smooth:.3f}")
            if not console.is_terminal and step % max(1, steps // LINES) == 0:
                say(f"{what}: step {step:,} of {steps:,}, loss {smooth:.4f}")

        yield progress
