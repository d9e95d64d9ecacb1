"""`sharpmax clrs generate`: write CLRS-Text with its authors' generator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharpmax._errors import UserError
from sharpmax._ranges import parse_ranges
from sharpmax.cli.options import Overwrite, Processes, parse_range_option
from sharpmax.cli.progress import job_progress


def generate(
    out: Annotated[Path, typer.Argument(help="Folder to write into.", metavar="FOLDER")],
    split: Annotated[
        str,
        typer.Option(
            help="train or test: whose sizes, seeds and number of samples to use.", metavar="NAME"
        ),
    ] = "train",
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            help="NAME, or NAME=SIZES such as minimum=4-16,32. Repeat for several. Default: all.",
            metavar="NAME[=SIZES]",
        ),
    ] = None,
    largest: Annotated[
        int | None, typer.Option(help="Leave out official sizes above this one.", metavar="N")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Samples per algorithm, size and seed. Default: 10000 for train, 125 for test.",
            metavar="N",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Seeds, such as 0-2. Default: 0 for train, 3,14,35,81,94 for test.", metavar="LIST"
        ),
    ] = None,
    overwrite: Overwrite = False,
    processes: Processes = None,
) -> None:
    """Write CLRS-Text as JSONL files.

    Uses the authors' generator, and adds a manifest with hashes. Needs the package dm-clrs;
    training and testing do not. Interrupted runs resume when you run the same command again.
    """
    from sharpmax.experiments.clrs_text import algorithms
    from sharpmax.experiments.clrs_text import generate as generator

    if split not in algorithms.SIZES:
        raise UserError(f"unknown split {split!r}: expected one of {', '.join(algorithms.SIZES)}")
    seed_list = parse_range_option("--seeds", seeds)
    config = generator.Config(
        split,
        _select_sizes(algorithm, largest, algorithms.SIZES[split]),
        None if seed_list is None else tuple(seed_list),
        samples,
    )
    with job_progress("algorithms") as progress:
        manifest = generator.generate_dataset(
            config, out, overwrite=overwrite, processes=processes, progress=progress
        )
    count = sum(file.rows for file in manifest.files.values())
    typer.echo(
        f"{out}: {count:,} samples of {len(manifest.files)} algorithms, sha256 {manifest.sha256}"
    )


def _select_sizes(
    selected: list[str] | None, largest: int | None, official: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each algorithm: those given after its name, or the official ones."""
    from sharpmax.experiments.clrs_text.algorithms import check_algorithms

    sizes: dict[str, tuple[int, ...]] = {}
    for text in selected or official:
        name, equals, given = text.partition("=")
        check_algorithms([name])
        if equals:
            sizes[name] = tuple(dict.fromkeys(parse_ranges(f"--algorithm {name}", given)))
        else:
            sizes[name] = tuple(
                size for size in official[name] if largest is None or size <= largest
            )
    return sizes
