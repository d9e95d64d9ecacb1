"""`sharpmax reproduce`: a figure of the paper as JSON, PNG and SVG."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import Out, Overwrite
from sharpmax.results import Result

EXPERIMENTS = {
    "figure1": (
        "one_head",
        "a head over a fixed vocabulary disperses as its input grows (Theorem 2.2)",
    ),
    "figure3": (
        "head_entropy",
        "heads of a language model's first block against the number of elements",
    ),
    "figure5": (
        "power_series",
        "entropy of ten elements of a power series over base and temperature",
    ),
}
"""What can be reproduced: the module of `sharpmax.experiments` that runs it, and what it shows."""

LISTING = "; ".join(f"{name}: {what}" for name, (_, what) in EXPERIMENTS.items())


def reproduce(
    name: Annotated[
        str, typer.Argument(help=LISTING, metavar="|".join(EXPERIMENTS), show_default=False)
    ],
    out: Out = Path("results"),
    overwrite: Overwrite = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="For figure3: another model than smollm2, a folder or a name on the hub, such as "
            "google/gemma-2b, the paper's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run an experiment of the paper and draw it: NAME.json, NAME.png and NAME.svg."""
    for path in run_and_draw(name, out, overwrite, model)[1]:
        typer.echo(path)


def files_of(name: str, out: Path) -> list[Path]:
    """What reproducing this writes."""
    return [(out / name).with_suffix(suffix) for suffix in (".json", ".png", ".svg")]


def run_and_draw(
    name: str, out: Path, overwrite: bool, model: str | None = None
) -> tuple[Result, list[Path]]:
    """The result and the files written; what exists is refused before any work is done."""
    if name not in EXPERIMENTS:
        raise UserError(f"cannot reproduce {name!r}: expected one of {', '.join(EXPERIMENTS)}")
    if model is not None and name != "figure3":
        raise UserError(f"--model {model} goes with figure3; {name} has no language model in it")
    stem = out / name
    refuse_overwriting(files_of(name, out), overwrite)
    # Imported late: `sharpmax --help` should not wait for the drawing library.
    from sharpmax import plot
    from sharpmax.plot import style

    experiment = import_module(f"sharpmax.experiments.{EXPERIMENTS[name][0]}")
    chosen = {} if model is None else {"model": model}
    result: Result = experiment.run(experiment.Config(**chosen))
    written = [result.save(stem.with_suffix(".json"), overwrite=overwrite)]
    return result, written + style.save(plot.draw(result), stem, overwrite=overwrite)
