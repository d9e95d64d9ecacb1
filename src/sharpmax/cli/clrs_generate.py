"""`sharpmax clrs generate`: the data, as their authors' program makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpmax._errors import UserError
from sharpmax.cli.options import Overwrite, Processes, numbers
from sharpmax.cli.progress import bars


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
        made = generating.generate_dataset(
            config, out, overwrite=overwrite, processes=processes, progress=progress
        )
    rows = sum(file.rows for file in made.files.values())
    typer.echo(f"{out}: {rows:,} samples of {len(made.files)} algorithms, sha256 {made.sha256}")


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
