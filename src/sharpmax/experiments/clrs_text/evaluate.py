"""Figure 8: exact match under each condition on each algorithm, by the size of the problem.

Five test sets with different seeds (the resampling test) give the spread. The entropy of every head
is measured at the last token of some of the same questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.clrs_text.conditions import CONDITIONS, UNCALIBRATED, Condition
from sharpmax.experiments.clrs_text.data import Source, load_samples
from sharpmax.experiments.clrs_text.evaluate_model import (
    EvaluationSettings,
    TrainedModel,
    evaluate_model,
    find_trained_models,
)
from sharpmax.experiments.jobs import Progress
from sharpmax.results import Result, Stopwatch

__all__ = ["Config", "run"]

FINISHED = "evaluation"
"""Folder, in that of the trained models, of finished tests."""

Outcomes = dict[str, list[dict[str, Any]]]
"""By condition, the outcome of `evaluate_model` for every seed."""


@dataclass(frozen=True)
class Config:
    """Settings of Figure 8."""

    data: str
    """The test split: a folder, or the name of the published dataset."""
    trained: str
    """The folder that `train` wrote into."""
    calibration: str | None = None
    """Data with other seeds, at sizes trained at and beyond, for calibrated conditions."""
    conditions: tuple[str, ...] = UNCALIBRATED
    """Names of conditions."""
    algorithms: tuple[str, ...] = ()
    """Only these algorithms; all of the data by default."""
    sizes: tuple[int, ...] = ()
    """Only these sizes; all of the data by default."""
    samples: int | None = None
    """Maximum number of samples per algorithm, size and test seed."""
    entropy_samples: int = 5
    """Questions per algorithm and size on which the entropy of the heads is measured."""
    batch: int = 64
    """Maximum number of questions that are answered together."""
    device: str = "auto"
    """Device that runs the models."""
    dtype: str = "float32"
    """Data type of the models' weights."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name, for files.

        Returns:
            The fields; `conditions` is called `arms`, as in published results.
        """
        return {
            "arms" if name == "conditions" else name: value for name, value in asdict(self).items()
        }


def run(
    config: Config,
    *,
    progress: Progress | None = None,
    conditions: dict[str, Condition] | None = None,
) -> Result:
    """Test every trained seed under every condition.

    Finished tests are saved with the trained models, so an interrupted call resumes after the last
    model and condition that it finished.

    Args:
        config: The data, the trained models and the names of the conditions.
        progress: Called while models are tested.
        conditions: All conditions by name; `CONDITIONS` by default.

    Returns:
        A result of kind `figure8`.

    Raises:
        UserError: If a condition is unknown, or its model or its calibration data are missing.
    """
    watch, conditions = Stopwatch(), CONDITIONS if conditions is None else conditions
    unknown = [name for name in config.conditions if name not in conditions]
    if unknown:
        raise UserError(
            f"unknown condition {unknown[0]!r}: expected one of {', '.join(conditions)}"
        )
    models = find_trained_models(Path(config.trained))
    tests = list(_list_tests(config, models, conditions))
    source, calibration = _load_data(config, conditions)
    settings = EvaluationSettings(
        source.samples,
        () if calibration is None else calibration.samples,
        config.entropy_samples,
        config.batch,
        config.device,
        config.dtype,
    )
    outcomes: Outcomes = {}
    for index, (name, trained) in enumerate(tests):

        def report_share(share: float, index: int = index) -> None:
            if progress is not None:
                progress("testing", len(tests), index, share)

        condition = conditions[name]
        fitted_to = calibration if condition.calibrated else None
        path = _outcome_path(config, condition, name, trained, source, fitted_to)
        if not path.exists():
            outcome = evaluate_model(settings, condition, trained, report_share)
            write_atomically(path, json.dumps(outcome).encode())
        outcomes.setdefault(name, []).append(json.loads(path.read_text("utf-8")))
        report_share(1.0)
    return _make_result(config, conditions, models, source, outcomes, watch)


def _load_data(config: Config, conditions: dict[str, Condition]) -> tuple[Source, Source | None]:
    """Load the test set, and the calibration set if a condition needs one."""
    source = load_samples(
        config.data,
        "test",
        algorithms=config.algorithms,
        sizes=config.sizes,
        limit=config.samples,
    )
    calibrated = [name for name in config.conditions if conditions[name].calibrated]
    if not calibrated:
        return source, None
    if config.calibration is None:
        raise UserError(
            f"condition {calibrated[0]!r} needs calibration samples: generate some with other "
            "seeds, at sizes trained at and beyond, and give their folder (--calibration)"
        )
    algorithms = dict.fromkeys(sample.algorithm for sample in source.samples)
    calibration = load_samples(config.calibration, "test", algorithms=tuple(algorithms))
    seeds = {sample.seed for sample in calibration.samples}
    if shared := seeds & {sample.seed for sample in source.samples}:
        raise UserError(
            f"{config.calibration} has the seed {min(shared)} of the test set: calibrate on others"
        )
    return source, calibration


def _list_tests(
    config: Config, models: list[TrainedModel], conditions: dict[str, Condition]
) -> Iterator[tuple[str, TrainedModel]]:
    """Yield every condition with every model that was trained for it."""
    for name in config.conditions:
        attention = conditions[name].attention
        matching = [model for model in models if model.attention == attention]
        if not matching:
            raise UserError(
                f"condition {name!r} needs a model trained with {attention} attention, and "
                f"{config.trained} has none: train it, or choose other conditions"
            )
        yield from ((name, model) for model in sorted(matching, key=lambda model: model.seed))


def _outcome_path(
    config: Config,
    condition: Condition,
    name: str,
    trained: TrainedModel,
    source: Source,
    calibration: Source | None,
) -> Path:
    """Return the file of a finished test, named after everything that its numbers depend on."""
    locations = dict.fromkeys(("data", "trained", "calibration", "batch"))
    depends_on = {
        "config": {**config.to_dict(), "arms": name, **locations},
        "label": condition.label,
        "format": 2,  # version of the file; 2 counts familiar answers separately
        "data": source.about,
        "calibration": None if calibration is None else calibration.about,
        "training": trained.record.config,
    }
    digest = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
    return Path(config.trained) / FINISHED / f"{name}-seed{trained.seed}-{digest[:12]}.json"


def _make_result(
    config: Config,
    conditions: dict[str, Condition],
    models: list[TrainedModel],
    source: Source,
    outcomes: Outcomes,
    watch: Stopwatch,
) -> Result:
    seeds = sorted({sample.seed for sample in source.samples})
    algorithms: dict[str, Any] = {}
    for algorithm in dict.fromkeys(sample.algorithm for sample in source.samples):
        sizes = sorted({sample.size for sample in source.samples if sample.algorithm == algorithm})
        first = outcomes[config.conditions[0]][0]
        algorithms[algorithm] = {
            "sizes": sizes,
            "train_sizes": models[0].sizes(algorithm),
            "familiar": [_familiar_share(first, algorithm, size) for size in sizes],
            "arms": {
                name: _curve(outcomes[name], algorithm, sizes, seeds) for name in config.conditions
            },
        }
    return Result(
        kind="figure8",
        config={**config.to_dict(), "test_data": source.about},
        seeds=tuple(dict.fromkeys(model.seed for model in models)),
        measurements={
            "model": models[0].record.measurements["model"],
            "notes": models[0].record.measurements["notes"],
            "test_seeds": seeds,
            "labels": {name: conditions[name].label for name in config.conditions},
            "algorithms": algorithms,
            "trainings": [
                {
                    "attention": model.attention,
                    "seed": model.seed,
                    "config": model.record.config,
                    "last_loss": model.record.measurements["last_loss"],
                    "seconds": model.record.measurements["seconds"],
                }
                for model in models
            ],
        },
        provenance=watch.provenance(),
    )


def _curve(
    outcomes: list[dict[str, Any]], algorithm: str, sizes: list[int], seeds: list[int]
) -> dict[str, Any]:
    """Return the accuracy [training, test seed, size], its mean and its spreads.

    `std_tests` is the spread over test sets, `std_trainings` that over trainings; `mean_familiar`
    counts familiar answers only. The entropy is that of all heads and its mean per size.
    """
    accuracy = np.array(
        [
            [[_accuracy(outcome, algorithm, size, seed) for size in sizes] for seed in seeds]
            for outcome in outcomes
        ]
    )
    entropy = [
        [outcome["entropy"].get(algorithm, {}).get(str(size)) for size in sizes]
        for outcome in outcomes
    ]
    return {
        "accuracy": accuracy,
        "mean": accuracy.mean((0, 1)),
        "std_tests": accuracy.mean(0).std(0, ddof=1) if len(seeds) > 1 else None,
        "std_trainings": accuracy.mean(1).std(0, ddof=1) if len(outcomes) > 1 else None,
        "mean_familiar": [_familiar_accuracy(outcomes, algorithm, size) for size in sizes],
        "notes": [outcome["notes"][algorithm] for outcome in outcomes],
        "entropy": entropy,
        "mean_entropy": [
            None if entropy[0][index] is None else float(np.mean([row[index] for row in entropy]))
            for index in range(len(sizes))
        ],
    }


def _accuracy(outcome: dict[str, Any], algorithm: str, size: int, seed: int) -> float:
    correct, questions, *_ = outcome["right"][algorithm][str(size)][str(seed)]
    return float(correct / questions)


def _familiar_share(outcome: dict[str, Any], algorithm: str, size: int) -> float:
    """Return the share of questions with a familiar answer.

    This is the best accuracy of a model that never names an item it has not seen in training.
    """
    rows = outcome["right"][algorithm][str(size)].values()
    return float(sum(familiar for *_, familiar in rows) / sum(asked for _, asked, *_ in rows))


def _familiar_accuracy(outcomes: list[dict[str, Any]], algorithm: str, size: int) -> float | None:
    """Return the accuracy on questions with a familiar answer; None if there are none."""
    rows = [row for outcome in outcomes for row in outcome["right"][algorithm][str(size)].values()]
    familiar = sum(row[3] for row in rows)
    return float(sum(row[2] for row in rows) / familiar) if familiar else None
