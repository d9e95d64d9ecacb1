"""Figure 8: exact match of each arm on each algorithm, against the size of the problem.

Five test sets by their seeds (the resampling test) give the spread; the entropy of every head is
measured at the last token of some of the same questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.clrs_text.arms import ARMS, PAPERS, Arm
from sharpmax.experiments.clrs_text.data import Source, read
from sharpmax.experiments.clrs_text.exam import Exam, Trained, finished
from sharpmax.results import Result, Stopwatch

Progress = Callable[[str, int, int, float], None]

PARTS = "evaluation"
"""The folder, in that of the trained models, of what is finished."""


@dataclass(frozen=True)
class Config:
    """What to test."""

    data: str
    """The test split: a folder, or the published dataset."""
    trained: str
    """The folder that `train` wrote into."""
    calibration: str | None = None
    """Data of other seeds, also at sizes beyond those trained at, for arms that are fitted."""
    arms: tuple[str, ...] = PAPERS
    algorithms: tuple[str, ...] = ()
    """All of the data, or these."""
    sizes: tuple[int, ...] = ()
    samples: int | None = None
    """At most so many for each algorithm, size and test seed."""
    entropy_samples: int = 5
    """Questions of each algorithm and size on which the heads' entropy is measured; 0 for none."""
    batch: int = 64
    device: str = "auto"
    dtype: str = "float32"


def run(
    config: Config, *, progress: Progress | None = None, arms: dict[str, Arm] | None = None
) -> Result:
    """Test every arm on every seed that was trained. A call that was stopped goes on after the last
    model and arm that it finished.
    """
    watch, arms = Stopwatch(), ARMS if arms is None else arms
    unknown = [name for name in config.arms if name not in arms]
    if unknown:
        raise UserError(f"unknown arm {unknown[0]!r}: expected one of {', '.join(arms)}")
    found = finished(Path(config.trained))
    units = list(_units(config, found, arms))
    source, calibration = _read(config, arms)
    exam = Exam(
        source.samples,
        () if calibration is None else calibration.samples,
        config.entropy_samples,
        config.batch,
        config.device,
        config.dtype,
    )
    marks: dict[str, list[dict[str, Any]]] = {}
    for place, (name, trained) in enumerate(units):

        def told(share: float, place: int = place) -> None:
            if progress is not None:
                progress("testing", len(units), place, share)

        fitted = calibration if arms[name].calibrated else None
        path = _part(config, arms[name], name, trained, source, fitted)
        if not path.exists():
            examined = exam.of(arms[name], trained, told)
            write_atomically(path, json.dumps(examined).encode())
        marks.setdefault(name, []).append(json.loads(path.read_text("utf-8")))
        told(1.0)
    return _result(config, arms, found, source, marks, watch)


def _read(config: Config, arms: dict[str, Arm]) -> tuple[Source, Source | None]:
    """The test set, and what the arms that need it are fitted to."""
    chosen = {"algorithms": config.algorithms, "sizes": config.sizes, "limit": config.samples}
    source = read(config.data, "test", **chosen)  # type: ignore[arg-type]
    fitted = [name for name in config.arms if arms[name].calibrated]
    if not fitted:
        return source, None
    if config.calibration is None:
        raise UserError(
            f"arm {fitted[0]!r} needs samples of its own: generate some with other seeds, at sizes "
            "trained at and beyond, and name their folder (--calibration)"
        )
    asked = dict.fromkeys(sample.algorithm for sample in source.samples)
    calibration = read(config.calibration, "test", algorithms=tuple(asked))
    seen = {sample.seed for sample in calibration.samples}
    if both := seen & {sample.seed for sample in source.samples}:
        raise UserError(
            f"{config.calibration} has the seed {min(both)} of the test set: calibrate on others"
        )
    return source, calibration


def _units(
    config: Config, found: list[Trained], arms: dict[str, Arm]
) -> Iterator[tuple[str, Trained]]:
    for name in config.arms:
        fitting = [one for one in found if one.attention == arms[name].attention]
        if not fitting:
            raise UserError(
                f"arm {name!r} needs a model trained with {arms[name].attention} attention, and "
                f"{config.trained} has none: train it, or choose other arms"
            )
        yield from ((name, one) for one in sorted(fitting, key=lambda one: one.seed))


def _part(
    config: Config,
    arm: Arm,
    name: str,
    trained: Trained,
    source: Source,
    calibration: Source | None,
) -> Path:
    """Named by all that its numbers depend on."""
    places = dict.fromkeys(("data", "trained", "calibration", "batch"))
    made_of = {
        "config": {**asdict(config), "arms": name, **places},
        "label": arm.label,
        "format": 2,  # of what is kept; 2 counts familiar answers apart
        "data": source.about,
        "calibration": None if calibration is None else calibration.about,
        "training": trained.record.config,
    }
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    return Path(config.trained) / PARTS / f"{name}-seed{trained.seed}-{digest[:12]}.json"


def _result(
    config: Config,
    arms: dict[str, Arm],
    found: list[Trained],
    source: Source,
    marks: dict[str, list[dict[str, Any]]],
    watch: Stopwatch,
) -> Result:
    seeds = sorted({sample.seed for sample in source.samples})
    algorithms: dict[str, Any] = {}
    for algorithm in dict.fromkeys(sample.algorithm for sample in source.samples):
        sizes = sorted({one.size for one in source.samples if one.algorithm == algorithm})
        algorithms[algorithm] = {
            "sizes": sizes,
            "train_sizes": found[0].sizes(algorithm),
            "familiar": [_familiar(marks[config.arms[0]][0], algorithm, size) for size in sizes],
            "arms": {name: _curve(marks[name], algorithm, sizes, seeds) for name in config.arms},
        }
    return Result(
        kind="figure8",
        config={**asdict(config), "test_data": source.about},
        seeds=tuple(dict.fromkeys(one.seed for one in found)),
        measurements={
            "model": found[0].record.measurements["model"],
            "notes": found[0].record.measurements["notes"],
            "test_seeds": seeds,
            "labels": {name: arms[name].label for name in config.arms},
            "algorithms": algorithms,
            "trainings": [
                {
                    "attention": one.attention,
                    "seed": one.seed,
                    "config": one.record.config,
                    "last_loss": one.record.measurements["last_loss"],
                    "seconds": one.record.measurements["seconds"],
                }
                for one in found
            ],
        },
        provenance=watch.provenance(),
    )


def _curve(
    marks: list[dict[str, Any]], algorithm: str, sizes: list[int], seeds: list[int]
) -> dict[str, Any]:
    """Accuracy [training, test seed, size], its mean, its spread over test sets and over trainings,
    and its mean over familiar answers; the heads' entropy, mean over all, [size].
    """
    accuracy = np.array(
        [
            [[_share(one, algorithm, size, seed) for size in sizes] for seed in seeds]
            for one in marks
        ]
    )
    entropy = [
        [one["entropy"].get(algorithm, {}).get(str(size)) for size in sizes] for one in marks
    ]
    return {
        "accuracy": accuracy,
        "mean": accuracy.mean((0, 1)),
        "std_tests": accuracy.mean(0).std(0, ddof=1) if len(seeds) > 1 else None,
        "std_trainings": accuracy.mean(1).std(0, ddof=1) if len(marks) > 1 else None,
        "mean_familiar": [_right_of_familiar(marks, algorithm, size) for size in sizes],
        "notes": [one["notes"][algorithm] for one in marks],
        "entropy": entropy,
        "mean_entropy": [
            None if entropy[0][place] is None else float(np.mean([one[place] for one in entropy]))
            for place in range(len(sizes))
        ],
    }


def _share(one: dict[str, Any], algorithm: str, size: int, seed: int) -> float:
    right, asked, *_ = one["right"][algorithm][str(size)][str(seed)]
    return float(right / asked)


def _familiar(one: dict[str, Any], algorithm: str, size: int) -> float:
    """The share of questions whose answer names only items that were there in training: all that a
    model can answer which has learned no others.
    """
    counts = one["right"][algorithm][str(size)].values()
    return float(sum(known for *_, known in counts) / sum(asked for _, asked, *_ in counts))


def _right_of_familiar(marks: list[dict[str, Any]], algorithm: str, size: int) -> float | None:
    counts = [row for one in marks for row in one["right"][algorithm][str(size)].values()]
    known = sum(row[3] for row in counts)
    return float(sum(row[2] for row in counts) / known) if known else None
