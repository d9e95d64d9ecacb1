"""The leaderboard: every method, in every track, on every task, and what a step of it costs.

A unit that is done is kept in the folder, so the same command goes on after any interruption.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments import cluster, jobs
from sharpmax.experiments.leaderboard import cost
from sharpmax.experiments.leaderboard.entries import (
    BASELINE,
    METHODS,
    TASKS,
    TRACKS,
    Entry,
    reason_against,
)
from sharpmax.experiments.leaderboard.unit import Budget, Unit, perform
from sharpmax.experiments.max_retrieval.settings import Training, check
from sharpmax.experiments.max_retrieval.statistics import sampling_error, spread
from sharpmax.experiments.max_retrieval.sweep import Progress, about
from sharpmax.results import Result, Stopwatch

RULES = (
    "Every method has the same number of steps, the same sets in training from the same seeds, and "
    "of the same few learning rates that of the lowest training loss in a short training, or the "
    "next if that is too high for the whole. Methods are compared on the same sets. Nothing was "
    "chosen by accuracy on sets larger than those of training."
)

TRAINING = ("learning_rate", "tuning", "given_up", "final_loss", "diverged")
"""What a row tells of how its heads were trained."""


@dataclass(frozen=True)
class Config:
    budget: Budget = field(default_factory=Budget)
    tracks: tuple[str, ...] = tuple(TRACKS)
    tasks: tuple[str, ...] = TASKS
    methods: tuple[str, ...] = METHODS
    rounds: int = 7
    """Of timing."""

    def entries(self) -> list[Entry]:
        """Every row, whether it can take part or not. Softmax is in each: all is beside it."""
        methods = dict.fromkeys([BASELINE, *self.methods])
        return [
            Entry(track, task, method)
            for task in self.tasks
            for track in self.tracks
            for method in methods
        ]


QUICK = Config(
    Budget(steps=600, rates=(3e-3,), seeds=(0,), sizes=(16, 64, 256, 1_024), sets=64),
    tasks=("max",),
    rounds=2,
)
"""Minutes instead of an hour: not enough to rank anything."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: Path = Path("results/training"),
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    ray: str | None = None,
) -> Result:
    """All rows. Checkpoints and finished units are kept in `folder`, and taken up there.

    On all cores of this machine, or on the Ray cluster at the address `ray`.
    """
    _check(config)
    watch = Stopwatch()
    units = _units(config, folder)
    found = _performed(list(units), processes, progress, ray)
    timing = cost.Timing(
        tuple(dict.fromkeys([BASELINE, *(unit.design for unit in units)])), config.rounds
    )
    told = about("timing", [timing], progress)
    (costs,) = jobs.run(cost.compare, [timing], processes=1, progress=told)
    return Result(
        kind="leaderboard",
        config=asdict(config),
        seeds=config.budget.seeds,
        measurements={
            "rules": RULES,
            "tracks": {name: TRACKS[name].what for name in config.tracks},
            "sizes": config.budget.sizes,
            "rows": [_row(entry, config, folder, found) for entry in config.entries()],
            "cost": costs,
            "unit_seconds": sum(one["seconds"] for one in found.values()),
        },
        provenance=watch.provenance(),
    )


def _units(config: Config, folder: Path) -> dict[Unit, None]:
    """What has to be trained, each once, in the order of the rows."""
    return dict.fromkeys(
        _unit(entry, config, folder) for entry in config.entries() if not reason_against(entry)
    )


def _unit(entry: Entry, config: Config, folder: Path) -> Unit:
    augmented = TRACKS[entry.track].augmented
    return Unit(entry.trains, entry.task, augmented, config.budget, folder)


def _performed(
    units: Sequence[Unit], processes: int | None, progress: Progress | None, ray: str | None
) -> dict[Unit, dict[str, Any]]:
    """What was found of every unit; those that were kept are not performed again."""
    missing = [unit for unit in units if not unit.record.exists()]

    def keep(place: int, found: dict[str, Any]) -> None:
        write_atomically(missing[place].record, json.dumps(found, indent=1).encode())

    told = about("training", missing, progress)
    if ray is None:
        jobs.run(perform, missing, processes=processes, progress=told, keep=keep)
    else:
        # What a node keeps on its disk is at the same place there, shared or not.
        sent = [unit._replace(folder=unit.folder.absolute()) for unit in missing]
        cluster.run(perform, sent, address=ray, progress=told, keep=keep)
    return {unit: _read(unit.record) for unit in units}


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it, and it is made anew from the checkpoints"
        ) from error
    return found


def _row(
    entry: Entry, config: Config, folder: Path, found: dict[Unit, dict[str, Any]]
) -> dict[str, Any]:
    """One entry: what was measured, or why it could not be."""
    named = entry._asdict()
    reason = reason_against(entry)
    if reason is not None:
        return {**named, "reason": reason}
    whole = found[_unit(entry, config, folder)]
    marks = whole["methods"][entry.method]
    accuracy = np.asarray(marks["accuracy"])
    row = {
        **named,
        **{name: whole[name] for name in TRAINING},
        "accuracy": accuracy,  # [seed, size]
        "mean": accuracy.mean(0),
        "std": spread(accuracy),
        "sampling_error": sampling_error(accuracy.mean(0), config.budget.sets * len(accuracy)),
        "sharpness": _mean(marks["sharpness"]),
    }
    if TRACKS[entry.track].own:
        row["learned"] = whole["learned"]
    if entry.task == "max":
        causes = ("ranked", "dispersion", "ranking")
        row |= {name: np.mean(marks[name], axis=0) for name in causes}
    return row


def _mean(by_seed: list[list[float | None]]) -> list[float | None]:
    """Over the seeds that have a number, size by size."""
    columns = [
        [value for value in column if value is not None] for column in zip(*by_seed, strict=True)
    ]
    return [float(np.mean(column)) if column else None for column in columns]


def _check(config: Config) -> None:
    for what, given, known in (
        ("track", config.tracks, tuple(TRACKS)),
        ("task", config.tasks, TASKS),
        ("method", config.methods, METHODS),
    ):
        strange = [name for name in given if name not in known]
        if strange:
            raise UserError(f"unknown {what} {strange[0]!r}: expected one of {', '.join(known)}")
    if not config.budget.rates:
        raise UserError("tuning needs at least one learning rate, got none")
    for steps in (config.budget.steps, config.budget.tuning_steps):
        check(Training(steps=steps, narrowest=config.budget.narrowest, kept_at=()))
