"""`sharpmax clrs train`: train with softmax and with adaptive temperature, from several seeds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharpmax._errors import UserError
from sharpmax._ranges import parse_ranges
from sharpmax.cli.commands.clrs.options import Algorithm, Sizes, TrainData
from sharpmax.cli.options import Threads, parse_range_option
from sharpmax.cli.progress import loss_progress

if TYPE_CHECKING:
    from sharpmax.experiments.clrs_text.train import Job


def train(
    data: TrainData,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for models and checkpoints.", metavar="FOLDER"),
    ] = Path("clrs-models"),
    attention: Annotated[
        list[str] | None,
        typer.Option(
            help="softmax, or adaptive: adaptive temperature in all heads. Repeat for several. "
            "Default: both.",
            metavar="NAME",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            help="Seeds for weights and order, such as 0-1. One training per seed.", metavar="LIST"
        ),
    ] = "0",
    algorithm: Algorithm = None,
    sizes: Sizes = None,
    samples: Annotated[
        list[str] | None,
        typer.Option(
            help="Maximum number of samples per algorithm and size: N for all, NAME=N for one "
            "algorithm. Repeat for several. Algorithms with more samples are seen more often.",
            metavar="N|NAME=N",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="small (a new Gemma), a folder, or a model name on the Hugging Face hub. The "
            "paper uses google/gemma-2b.",
            metavar="MODEL",
        ),
    ] = "small",
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="Tokens of the small model: characters, pieces (words and single digits) or pairs "
            "(of digits). Default: pairs.",
            metavar="NAME",
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Changes to the shape of the small model, such as layers=2,heads=8. Default: "
            "width=128, layers=4, heads=4, key_heads=4, head_size=32, inner=256, context=8192, "
            "rope_theta=10000.",
            metavar="NAME=N,...",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Training steps. Default: 20000.", metavar="N")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples per step. Default: 32.", metavar="N")
    ] = None,
    micro: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of samples in memory at a time, over all devices. Default: 16.",
            metavar="N",
        ),
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option(help="adamw or muon. Default: adamw.", metavar="NAME")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate. Default: 0.001.", metavar="X")
    ] = None,
    growing: Annotated[
        float | None,
        typer.Option(
            help="Share of steps over which larger sizes are added, smallest first. Default: 0.",
            metavar="X",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Precision of matrix products: auto, float32 or bfloat16.", metavar="NAME"
        ),
    ] = "auto",
    saving_memory: Annotated[
        bool, typer.Option("--saving-memory", help="Recompute activations instead of keeping them.")
    ] = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="Steps between checkpoints.", metavar="N", min=1)
    ] = 500,
    threads: Threads = None,
) -> None:
    """Train on CLRS-Text with softmax and adaptive temperature.

    Each training has a folder in OUT with its model, losses and a checkpoint. The loss is that of
    the answers. Interrupted runs resume when you run the same command again. For several devices or
    machines, start the command with `accelerate launch`, or with `torchrun` on CPUs.
    """
    import torch

    from sharpmax.experiments.clrs_text import config
    from sharpmax.experiments.clrs_text import train as training
    from sharpmax.experiments.clrs_text.data import load_samples

    if threads is not None:
        torch.set_num_threads(threads)
    options = {
        "steps": steps,
        "batch": batch,
        "micro": micro,
        "optimiser": optimiser,
        "learning_rate": learning_rate,
        "growing": growing,
        "vocabulary": vocabulary,
        "shape": None if shape is None else config.parse_shape(shape),
    }
    _check_model_options(model, options, config.SMALL)
    given = {name: value for name, value in options.items() if value is not None}
    trainings = [
        config.Training(
            attention=name,
            model=model,
            precision=precision,
            saving_memory=saving_memory,
            **given,  # type: ignore[arg-type]
        )
        for name in attention or ("softmax", "adaptive")
    ]
    for setting in trainings:
        setting.check()
    source = load_samples(
        data,
        "train",
        algorithms=algorithm or (),
        sizes=parse_range_option("--sizes", sizes) or (),
        **_parse_limits(samples or []),
    )
    for seed in parse_ranges("--seeds", seeds):
        for setting in trainings:
            _train_and_print(training.Job(setting, seed, source, out), checkpoint_every)


def _train_and_print(job: Job, checkpoint_every: int) -> None:
    """Run one training with a progress bar, and print its last loss."""
    from sharpmax.experiments.clrs_text import train as training

    description = f"{job.training.attention}, seed {job.seed}"
    with loss_progress(description, job.training.steps) as progress:
        result = training.run(job, progress=progress, checkpoint_every=checkpoint_every)
    if os.environ.get("RANK", "0") != "0":  # only the first of several processes prints
        return
    loss, seconds = (result.measurements[name] for name in ("last_loss", "seconds"))
    typer.echo(f"{job.folder}: loss {loss:.4f} at the end, {seconds / 60:.1f} minutes")


def _check_model_options(model: str, options: dict[str, Any], small: str) -> None:
    """Refuse options of the small model for any other model."""
    for name in ("vocabulary", "shape"):
        if model != small and options[name] is not None:
            raise UserError(f"--{name} goes with --model small, not with {model}")


def _parse_limits(texts: list[str]) -> dict[str, Any]:
    """Return the maximum number of samples, for all algorithms and for single ones."""
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
