"""`sharpmax reproduce`: run an experiment of the paper and draw its table or figure."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from sharpmax._errors import UserError
from sharpmax.cli.options import Out, Overwrite, Processes
from sharpmax.cli.output import claim_files, print_result, result_files, save_result
from sharpmax.cli.progress import job_progress
from sharpmax.results import Result

CHECKPOINTS = "training"
"""Folder of checkpoints inside the output folder, except for the study, whose are published."""


@dataclass(frozen=True)
class Experiment:
    """An experiment that the command can run."""

    module: str
    """Module in `sharpmax.experiments` with `Config` and `run`."""
    summary: str
    config: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Config`."""
    options: tuple[str, ...] = ()
    """Options of the command that this experiment supports; "training" stands for checkpoints."""
    jobs: str = "heads"
    """What its progress counts."""
    folder: str = CHECKPOINTS
    """Folder of checkpoints inside the output folder."""
    accumulates: bool = False
    """Whether a new result holds all measurements in that folder, so that it replaces the old."""


EXPERIMENTS = {
    "table1": Experiment(
        "max_retrieval.table1",
        "accuracy of max retrieval on up to 16,384 items, with and without adaptive temperature",
        options=("quick", "processes", "training"),
    ),
    "unknowns": Experiment(
        "max_retrieval.hyperparameter_grid",
        "which values of the paper's unpublished settings come closest to Table 1",
        options=("quick", "processes", "training"),
    ),
    "policies": Experiment(
        "max_retrieval.policy_comparison",
        "other policies for the heads of Table 1, and what they cost on another task",
        options=("processes",),
    ),
    "figure1": Experiment(
        "one_head", "a head over a fixed vocabulary disperses as its input grows (Theorem 2.2)"
    ),
    "figure2": Experiment(
        "max_retrieval.attention_maps", "attention of the max-retrieval head as its set grows"
    ),
    "figure3": Experiment(
        "head_entropy",
        "entropy of the first heads of a language model as its prompt grows",
        options=("model", "layer"),
    ),
    "figure5": Experiment(
        "power_series", "entropy of ten elements of a power series, by base and temperature"
    ),
    "figure6": Experiment(
        "max_retrieval.polynomial_fit",
        "the polynomial fitted to the best temperatures, the paper's and ours",
        options=("processes",),
    ),
    "figure7": Experiment(
        "max_retrieval.attention_maps",
        "Figure 2 without and with adaptive temperature",
        config={"methods": ("baseline", "adaptive")},
    ),
    "corollary": Experiment(
        "max_retrieval.corollary",
        "from how many items on the answer of a head cannot depend on the highest, and chance",
        options=("processes",),
    ),
    "tune-comparison": Experiment(
        "tune_comparison.experiment",
        "`sharpmax tune` against policies, calibrate and LoRA on the same questions; many hours",
        options=("model", "training", "only", "threads"),
        jobs="conditions",
    ),
    "study": Experiment(
        "study.experiment",
        "three models on lookup and RULER under eight conditions; about two days on one core",
        options=("model", "training", "only", "threads"),
        jobs="cells",
        folder="study",
        accumulates=True,
    ),
    "train-normalisers": Experiment(
        "train_normalisers.experiment",
        "small language models trained with several normalisers, tested far beyond training; hours",
        options=("quick", "training", "only", "threads"),
        jobs="models",
    ),
}

SETTINGS = {
    "help": "Rerun a table or figure of the paper.\n\n"
    + "Writes NAME.json, NAME.png and NAME.svg. Long runs save checkpoints in OUT/training: "
    + "interrupted runs resume when you run the same command again.\n\n"
    + "\n".join(f"- {name}: {entry.summary}" for name, entry in EXPERIMENTS.items())
}


def reproduce(
    name: Annotated[str, typer.Argument(help="One of the names above.", metavar="NAME")],
    out: Out = Path("results"),
    overwrite: Overwrite = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Use fewer steps, seeds and sets: minutes instead of hours, for table1, unknowns "
            "and train-normalisers. The files are named NAME-quick.",
        ),
    ] = False,
    processes: Processes = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model for figure3 and tune-comparison: a name that `sharpmax models` lists, a "
            "folder, or a name on the Hugging Face hub; the paper uses google/gemma-2b for "
            "figure3. Default: smollm2. For study: one of its three models. Default: all in turn.",
            metavar="MODEL",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            help="Layer for figure3. The files are named figure3-layer-N. Default: the first, "
            "which is layer 0.",
            metavar="N",
            min=0,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Conditions of tune-comparison, study or train-normalisers to work on now, "
            "separated by commas, such as plain,tune-1,lora-8. The result has all that are "
            "finished; an empty list only collects them. Default: all.",
            metavar="NAME,...",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Number of threads of tune-comparison, study and train-normalisers. Default: "
            "PyTorch's choice.",
            metavar="N",
            min=1,
        ),
    ] = None,
) -> None:
    """Run, draw and print one experiment; `SETTINGS` has the help text."""
    result, written = run_experiment(
        name,
        out,
        overwrite,
        quick=quick,
        processes=processes,
        model=model,
        layer=layer,
        only=only,
        threads=threads,
    )
    print_result(result, written)


def run_experiment(
    name: str,
    out: Path,
    overwrite: bool,
    *,
    quick: bool = False,
    processes: int | None = None,
    model: str | None = None,
    layer: int | None = None,
    only: str | None = None,
    threads: int | None = None,
) -> tuple[Result, list[Path]]:
    """Run an experiment, write its files and return the result with the paths.

    Raises:
        UserError: Before any work, if the experiment is unknown, does not support an option, or
            would replace files without `overwrite`.
    """
    if name not in EXPERIMENTS:
        raise UserError(f"cannot reproduce {name!r}: expected one of {', '.join(EXPERIMENTS)}")
    entry = EXPERIMENTS[name]
    given = {"quick": quick, "processes": processes, "model": model}
    _check_options(name, **given, layer=layer, only=only, threads=threads)
    suffix = "-quick" if quick else "" if layer is None else f"-layer-{layer}"
    stem = out / f"{name}{suffix}"
    overwrite = overwrite or (entry.accumulates and (out / entry.folder).is_dir())
    weights = [stem.with_suffix(".safetensors")] if name == "table1" else []
    with claim_files([*result_files(stem), *weights], overwrite) as claim:
        experiment = import_module(f"sharpmax.experiments.{entry.module}")
        chosen = {"model": model, "layer": layer}
        chosen = {key: value for key, value in chosen.items() if value is not None}
        config = experiment.QUICK if quick else experiment.Config(**entry.config, **chosen)
        with job_progress(entry.jobs) as progress:
            arguments: dict[str, Any] = {}
            if "processes" in entry.options:
                arguments |= {"processes": processes, "progress": progress}
            if "only" in entry.options:
                parts = None if only is None else [part.strip() for part in only.split(",")]
                names = None if parts is None else [part for part in parts if part]
                arguments |= {"only": names, "threads": threads, "progress": progress}
            if "training" in entry.options:
                arguments["folder"] = out / entry.folder
            result: Result = experiment.run(config, **arguments)
        with claim.writing():
            written = save_result(result, stem, claim.overwrite)
            for path in weights:
                experiment.load_trained_heads(config, out / CHECKPOINTS).save(path)
        return result, [*written, *weights]


def _check_options(name: str, **given: object) -> None:
    """Refuse an option that this experiment would ignore."""
    for option, value in given.items():
        if value not in (None, False) and option not in EXPERIMENTS[name].options:
            supported = [other for other, entry in EXPERIMENTS.items() if option in entry.options]
            typed = f"--{option}" if value is True else f"--{option} {value}"
            raise UserError(f"{typed} goes with {', '.join(supported)}, not with {name}")
