"""`sharpmax reproduce`: a table or figure of the paper as JSON, PNG and SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from sharpmax._errors import UserError
from sharpmax._files import refuse_overwriting
from sharpmax.cli.options import Out, Overwrite, Processes
from sharpmax.results import Result


@dataclass(frozen=True)
class Experiment:
    """What can be reproduced: where its `run(config)` is and what it shows."""

    module: str
    """Of `sharpmax.experiments`."""
    what: str
    config: dict[str, Any] = field(default_factory=dict)
    """What its `Config` is made with."""
    options: tuple[str, ...] = ()
    """Options of the command that it knows."""


EXPERIMENTS = {
    "table1": Experiment(
        "max_retrieval.table1",
        "accuracy of max retrieval to 16,384 items, with and without adaptive temperature",
        options=("quick", "processes", "training"),
    ),
    "unknowns": Experiment(
        "max_retrieval.hyperparameter_grid",
        "which of the settings that are not known comes closest to Table 1",
        options=("quick", "processes", "training"),
    ),
    "policies": Experiment(
        "max_retrieval.policy_comparison",
        "other ways to sharpen the heads of Table 1, and what they cost on another task",
        options=("processes",),
    ),
    "figure1": Experiment(
        "one_head", "a head over a fixed vocabulary disperses as its input grows (Theorem 2.2)"
    ),
    "figure2": Experiment(
        "max_retrieval.attention_maps", "where the max-retrieval head looks as its set grows"
    ),
    "figure3": Experiment(
        "head_entropy",
        "heads of a language model's first block against the number of elements",
        options=("model",),
    ),
    "figure5": Experiment(
        "power_series", "entropy of ten elements of a power series over base and temperature"
    ),
    "figure6": Experiment(
        "max_retrieval.polynomial_fit",
        "the polynomial fit, the paper's and ours",
        options=("processes",),
    ),
    "figure7": Experiment(
        "max_retrieval.attention_maps",
        "Figure 2 without and with adaptive temperature",
        config={"methods": ("baseline", "adaptive")},
    ),
}

HELP = """Run an experiment of the paper and draw it: NAME.json, NAME.png and NAME.svg.

Trainings keep checkpoints in OUT/training: repeat a command that was stopped, and it goes on.

""" + "\n\n".join(f"{name}: {one.what}" for name, one in EXPERIMENTS.items())

TRAINING = "training"
"""The folder of checkpoints, in that of the results."""


def reproduce(
    name: Annotated[
        str, typer.Argument(help="One of those above.", metavar="NAME", show_default=False)
    ],
    out: Out = Path("results"),
    overwrite: Overwrite = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="For table1 and unknowns: fewer steps, seeds and sets, in minutes; results are "
            "named NAME-quick.",
        ),
    ] = False,
    processes: Processes = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="For figure3: another model than smollm2, a folder or a name on the hub, such as "
            "google/gemma-2b, the paper's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run, draw and print one experiment; `HELP` is what a user reads."""
    result, written = run_and_draw(
        name, out, overwrite, quick=quick, processes=processes, model=model
    )
    show(result, written)


def files_of(stem: Path) -> list[Path]:
    """What reproducing this writes."""
    suffixes = (".json", ".png", ".svg", *([".safetensors"] if "table1" in stem.name else []))
    return [stem.with_suffix(suffix) for suffix in suffixes]


def run_and_draw(
    name: str,
    out: Path,
    overwrite: bool,
    *,
    quick: bool = False,
    processes: int | None = None,
    model: str | None = None,
) -> tuple[Result, list[Path]]:
    """The result and the files written; what exists is refused before any work is done."""
    if name not in EXPERIMENTS:
        raise UserError(f"cannot reproduce {name!r}: expected one of {', '.join(EXPERIMENTS)}")
    chosen = EXPERIMENTS[name]
    _refuse_strange(name, quick=quick, processes=processes, model=model)
    stem = out / (f"{name}-quick" if quick else name)
    refuse_overwriting(files_of(stem), overwrite)
    # Imported late: `sharpmax --help` should not wait for the drawing library.
    from sharpmax import plot
    from sharpmax.cli.progress import bars
    from sharpmax.plot import style

    experiment = import_module(f"sharpmax.experiments.{chosen.module}")
    config = experiment.QUICK if quick else experiment.Config(**_config(chosen, model))
    with bars() as progress:
        asked: dict[str, Any] = {}
        if "processes" in chosen.options:
            asked |= {"processes": processes, "progress": progress}
        if "training" in chosen.options:
            asked["folder"] = out / TRAINING
        result: Result = experiment.run(config, **asked)
    written = [result.save(stem.with_suffix(".json"), overwrite=overwrite)]
    if name == "table1":
        heads = experiment.load_trained_heads(config, out / TRAINING)
        written.append(heads.save(stem.with_suffix(".safetensors")))
    return result, written + style.save(plot.draw(result), stem, overwrite=overwrite)


def show(result: Result, written: list[Path]) -> None:
    """Print the table of a result, and where its files are."""
    from sharpmax.cli import tables

    tables.show(result)
    for path in written:
        typer.echo(path)


def _config(chosen: Experiment, model: str | None) -> dict[str, Any]:
    return chosen.config | ({} if model is None else {"model": model})


def _refuse_strange(name: str, **given: object) -> None:
    """An option that this experiment does not know is not ignored."""
    for option, value in given.items():
        if value not in (None, False) and option not in EXPERIMENTS[name].options:
            fitting = [other for other, one in EXPERIMENTS.items() if option in one.options]
            typed = f"--{option}" if value is True else f"--{option} {value}"
            raise UserError(f"{typed} goes with {', '.join(fitting)}, not with {name}")
