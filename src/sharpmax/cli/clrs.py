"""`sharpmax clrs`: CLRS-Text, the paper's language-model experiment, in three steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import Device, Overwrite, Processes, numbers
from sharpmax.cli.progress import COLUMNS, bars
from sharpmax.cli.reproduce import files_of, show
from sharpmax.cli.scan import say

clrs = typer.Typer(
    help="CLRS-Text: teach a language model thirty algorithms, and test it at larger sizes."
)

DATA = "The folder that `sharpmax clrs generate` wrote, or tomg-group-umd/CLRS-Text-{}."
LINES = 20
"""How often a training tells its loss where there is no terminal."""

Algorithm = Annotated[
    list[str] | None,
    typer.Option("--algorithm", help="Repeat for several. Default: all.", show_default=False),
]
Sizes = Annotated[str | None, typer.Option(help="Only these, such as 4-16,32.", show_default=False)]
Limit = Annotated[
    int | None,
    typer.Option(
        help="Use at most so many for each algorithm, size and seed.", min=1, show_default=False
    ),
]


@clrs.command()
def generate(
    out: Annotated[Path, typer.Argument(help="Folder to write into.", metavar="FOLDER")],
    split: Annotated[
        str, typer.Option(help="Whose sizes, seeds and numbers to use.", metavar="train|test")
    ] = "train",
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            help="NAME, or NAME=SIZES such as minimum=4-16,32. Repeat for several. Default: all.",
            show_default=False,
        ),
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(help="Leave out the official sizes above this.", show_default=False),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="For each algorithm, size and seed. Default: 10000 to train, 125 to test.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Default: 0 to train, 3,14,35,81,94 to test.", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
    processes: Processes = None,
) -> None:
    """Write CLRS-Text as its authors' generator makes it: JSONL and a manifest with hashes.

    Needs dm-clrs; training and testing do not. A command that was stopped goes on with the
    algorithms that it lacks.
    """
    from sharpmax.experiments.clrs_text import algorithms
    from sharpmax.experiments.clrs_text import generate as generating

    if split not in algorithms.SIZES:
        raise UserError(f"unknown split {split!r}: expected one of {', '.join(algorithms.SIZES)}")
    config = generating.Config(
        split,
        _sizes(algorithm, largest, algorithms.SIZES[split]),
        None if seeds is None else tuple(numbers("--seeds", seeds)),
        samples,
    )
    with bars("algorithms") as progress:
        made = generating.run(
            config, out, overwrite=overwrite, processes=processes, progress=progress
        )
    rows = sum(file.rows for file in made.files.values())
    typer.echo(f"{out}: {rows:,} samples of {len(made.files)} algorithms, sha256 {made.sha256}")


@clrs.command()
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
    samples: Limit = None,
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
            help="For small: characters or pieces. Default: pieces.",
            metavar="characters|pieces",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="For small: what differs from width=128,layers=4,heads=4,key_heads=1,"
            "head_size=32,inner=512,context=8192.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(help="Samples a step.", show_default=False)] = None,
    micro: Annotated[
        int | None,
        typer.Option(help="Samples at a time, over all devices.", show_default=False),
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
    machines, start it with accelerate launch.
    """
    import torch

    from sharpmax.experiments.clrs_text import settings
    from sharpmax.experiments.clrs_text import train as training
    from sharpmax.experiments.clrs_text.data import read

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
        "shape": None if shape is None else settings.shape_of(shape),
    }
    if model != settings.SMALL:
        strange = [name for name in ("vocabulary", "shape") if given[name] is not None]
        if strange:
            raise UserError(f"--{strange[0]} goes with --model small, not with {model}")
    asked = {name: value for name, value in given.items() if value is not None}
    wanted = [
        settings.Training(
            attention=name,
            model=model,
            precision=precision,
            saving_memory=saving_memory,
            **asked,  # type: ignore[arg-type]
        )
        for name in attention or ("softmax", "adaptive")
    ]
    for one in wanted:
        settings.check(one)
    source = read(
        data,
        "train",
        algorithms=algorithm or (),
        sizes=() if sizes is None else numbers("--sizes", sizes),
        limit=samples,
    )
    for seed in numbers("--seeds", seeds):
        for one in wanted:
            job = training.Job(one, seed, source, out)
            with _losses(f"{one.attention}, seed {seed}", one.steps) as progress:
                result = training.run(job, progress=progress, checkpoint_every=checkpoint_every)
            loss, seconds = (result.measurements[name] for name in ("last_loss", "seconds"))
            typer.echo(f"{job.folder}: loss {loss:.4f} at the end, {seconds / 60:.1f} minutes")


@clrs.command()
def evaluate(
    data: Annotated[str, typer.Argument(help=DATA.format("test"), metavar="DATA")],
    trained: Annotated[
        Path, typer.Option("--trained", help="The folder that train wrote into.")
    ] = Path("clrs-models"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write figure8 into.")] = Path(
        "results"
    ),
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="softmax, adaptive (trained and tested), inference (adaptive when tested only) or "
            "calibrated (a few heads, chosen by --calibration). Repeat for several. Default: all, "
            "calibrated only with --calibration.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="A folder of test data with other seeds, at sizes trained at and beyond.",
            metavar="DATA",
            show_default=False,
        ),
    ] = None,
    algorithm: Algorithm = None,
    sizes: Sizes = None,
    samples: Limit = None,
    batch: Annotated[int, typer.Option(help="Questions at a time.", min=1)] = 64,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "float32",
    threads: Annotated[
        int | None, typer.Option(help="On a CPU. Default: as torch has it.", min=1)
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Exact match of every arm by algorithm and size, and the heads' entropy: figure8.

    Writes figure8.json, .png and .svg. What is finished is kept with the trained models: repeat a
    command that was stopped, and it goes on.
    """
    stem = out / "figure8"
    refuse_overwriting(files_of(stem), overwrite)
    import torch

    from sharpmax import plot
    from sharpmax.experiments.clrs_text import evaluate as evaluating
    from sharpmax.experiments.clrs_text.arms import ARMS, PAPERS
    from sharpmax.plot import style

    if threads is not None:
        torch.set_num_threads(threads)
    config = evaluating.Config(
        data,
        str(trained),
        calibration,
        arms=tuple(arm or (ARMS if calibration else PAPERS)),
        algorithms=tuple(algorithm or ()),
        sizes=() if sizes is None else tuple(numbers("--sizes", sizes)),
        samples=samples,
        batch=batch,
        device=device,
        dtype=dtype,
    )
    with bars("arms") as progress:
        result = evaluating.run(config, progress=progress)
    written = [result.save(stem.with_suffix(".json"), overwrite=overwrite)]
    show(result, written + style.save(plot.draw(result), stem, overwrite=overwrite))


def _sizes(
    chosen: list[str] | None, largest: int | None, official: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """By algorithm: those that were given with its name, or the official ones."""
    from sharpmax.experiments.clrs_text.algorithms import check_algorithms

    sizes: dict[str, tuple[int, ...]] = {}
    for text in chosen or official:
        name, equals, given = text.partition("=")
        check_algorithms([name])
        if equals:
            sizes[name] = tuple(dict.fromkeys(numbers(f"--algorithm {name}", given)))
        else:
            sizes[name] = tuple(
                size for size in official[name] if largest is None or size <= largest
            )
    return sizes


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
