"""The leaderboard: every method in every track on every task, and the cost of a training step.

Finished trials are saved in the folder, so the same command resumes after an interruption.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sharpmax._errors import UserError
from sharpmax._files import write_atomically
from sharpmax.experiments.cluster import run_on_cluster
from sharpmax.experiments.jobs import Progress, ReportShare, label_progress, run_jobs
from sharpmax.experiments.leaderboard.config import QUICK, Config
from sharpmax.experiments.leaderboard.entries import (
    BASELINE,
    METHODS,
    NOT_YET,
    TASKS,
    TRACKS,
    Entry,
    reason_against,
)
from sharpmax.experiments.leaderboard.extend import Earlier
from sharpmax.experiments.leaderboard.trial import Trial, run_trial
from sharpmax.experiments.max_retrieval.evaluation import sampling_error, spread
from sharpmax.experiments.max_retrieval.train import (
    LOSS_EVERY,
    Training,
    initial_state,
    random_keys,
    train_steps,
)
from sharpmax.results import Result, Stopwatch

__all__ = ["QUICK", "Config", "run"]

RULES = (
    "Every method has the same number of steps, the same sets in training from the same seeds, and "
    "of the same few learning rates that of the lowest training loss in a short training, or the "
    "next if that is too high for the whole. Methods are compared on the same sets. Nothing was "
    "chosen by accuracy on sets larger than those of training."
)

TRAINING_FIELDS = ("learning_rate", "tuning", "given_up", "final_loss", "diverged")
"""Fields of a row that describe how its heads were trained."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: Path = Path("results/training"),
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    ray: str | None = None,
    earlier: Result | None = None,
) -> Result:
    """Run all trials, time a training step of every design, and put the rows together.

    Args:
        config: Tracks, tasks, methods and the budget.
        folder: Checkpoints and finished trials are saved here and resumed.
        processes: Trials at a time; the number of cores by default.
        progress: Called while trials run.
        ray: Address of a Ray cluster on which the trials run instead of this machine.
        earlier: A leaderboard with the same budget whose rows are kept; of the rows asked for only
            those that it lacks run. A trial gives all rows of its heads, so rows that share one are
            made anew. Rows that were never asked for say that they are not measured yet.

    Returns:
        A result of kind `leaderboard`.

    Raises:
        UserError: If a name is unknown, a setting is out of range, a saved trial is damaged or the
            earlier leaderboard was made under other conditions.
    """
    _check(config)
    extended = None if earlier is None else Earlier.of(earlier, config, RULES)
    asked = config.entries()
    config = config if extended is None else extended.widen(config)
    watch = Stopwatch()
    known = {} if extended is None else extended.rows
    # Several rows may share a trial.
    trials = dict.fromkeys(
        _trial(entry, config, folder)
        for entry in asked
        if not reason_against(entry) and entry not in known
    )
    outcomes = _run_trials(list(trials), processes, progress, ray)
    timing = TimingJob(
        tuple(dict.fromkeys([BASELINE, *(trial.design for trial in trials)])), config.rounds
    )
    report = label_progress("timing", 1, progress)
    (costs,) = run_jobs(time_steps, [timing], processes=1, progress=report)
    measurements = {
        "rules": RULES,
        "tracks": {name: TRACKS[name].what for name in config.tracks},
        "sizes": config.budget.sizes,
        "rows": [
            known[entry]
            if entry in known and _trial(entry, config, folder) not in trials
            else _row(entry, config, folder, outcomes)
            for entry in config.entries()
        ],
        "cost": costs,
        "unit_seconds": sum(outcome["seconds"] for outcome in outcomes.values()),
    }
    if extended is not None:
        measurements |= extended.record(costs, measurements["unit_seconds"], len(trials))
    return Result(
        kind="leaderboard",
        config=asdict(config),
        seeds=config.budget.seeds,
        measurements=measurements,
        provenance=watch.provenance(),
    )


def _trial(entry: Entry, config: Config, folder: Path) -> Trial:
    augmented = TRACKS[entry.track].augmented
    tracks = [TRACKS[name] for name in config.tracks]
    puts_in = any(not track.own and track.augmented == augmented for track in tracks)
    put_in = config.methods if puts_in and entry.trains == BASELINE else ()
    return Trial(entry.trains, entry.task, augmented, config.budget, folder, put_in)


def _run_trials(
    trials: Sequence[Trial], processes: int | None, progress: Progress | None, ray: str | None
) -> dict[Trial, dict[str, Any]]:
    """Run the trials that are not saved yet, and return the outcome of each."""
    missing = [trial for trial in trials if not trial.path.exists()]

    def save(index: int, outcome: dict[str, Any]) -> None:
        write_atomically(missing[index].path, json.dumps(outcome, indent=1).encode())

    report = label_progress("training", len(missing), progress)
    if ray is None:
        run_jobs(run_trial, missing, processes=processes, progress=report, on_result=save)
    else:
        # Nodes have other working directories: the checkpoints of a job stay where it runs.
        remote = [trial._replace(folder=trial.folder.absolute()) for trial in missing]
        run_on_cluster(run_trial, remote, address=ray, progress=report, on_result=save)
    return {trial: _load_outcome(trial.path) for trial in trials}


def _load_outcome(path: Path) -> dict[str, Any]:
    try:
        outcome: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it and repeat the command, which rebuilds it "
            "from the checkpoints"
        ) from error
    return outcome


def _row(
    entry: Entry, config: Config, folder: Path, outcomes: dict[Trial, dict[str, Any]]
) -> dict[str, Any]:
    """Return the measurements of one entry, or the reason why there are none."""
    outcome = outcomes.get(_trial(entry, config, folder))
    reason = reason_against(entry) or (NOT_YET if outcome is None else None)
    if outcome is None or reason is not None:
        return {**entry._asdict(), "reason": reason}
    measured = outcome["methods"][entry.method]
    accuracy = np.asarray(measured["accuracy"])
    row = {
        **entry._asdict(),
        **{name: outcome[name] for name in TRAINING_FIELDS},
        "accuracy": accuracy,  # [seed, size]
        "mean": accuracy.mean(0),
        "std": spread(accuracy),
        "sampling_error": sampling_error(accuracy.mean(0), config.budget.sets * len(accuracy)),
        "sharpness": _mean_over_seeds(measured["sharpness"]),
    }
    if TRACKS[entry.track].own:
        row["learned"] = outcome["learned"]
    if entry.task == "max":
        causes = ("ranked", "dispersion", "ranking")
        row |= {name: np.mean(measured[name], axis=0) for name in causes}
    return row


def _mean_over_seeds(by_seed: list[list[float | None]]) -> list[float | None]:
    """Return the mean per size over the seeds that have a number."""
    columns = [
        [value for value in column if value is not None] for column in zip(*by_seed, strict=True)
    ]
    return [float(np.mean(column)) if column else None for column in columns]


def _check(config: Config) -> None:
    """Refuse unknown names and settings that are out of range, before any work."""
    for what, names, known in (
        ("track", config.tracks, tuple(TRACKS)),
        ("task", config.tasks, TASKS),
        ("method", config.methods, METHODS),
    ):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UserError(f"unknown {what} {unknown[0]!r}: expected one of {', '.join(known)}")
    if not config.budget.rates:
        raise UserError("rates must have at least one learning rate, got none")
    for steps in (config.budget.steps, config.budget.tuning_steps):
        Training(steps=steps, narrowest=config.budget.narrowest, kept_at=()).check()


class TimingJob(NamedTuple):
    """Designs to time, softmax among them."""

    designs: tuple[str, ...]
    rounds: int = 7


def time_steps(job: TimingJob, report_share: ReportShare = lambda share: None) -> dict[str, Any]:
    """Measure milliseconds per training step of each design, and the ratio to softmax.

    All designs take turns in one process, round after round, so that other load on the machine
    affects all of them. The ratio is taken within a round; the result is the median over rounds.
    """
    weights_key, key = random_keys(0)
    trainings = {name: Training(design=name, kept_at=()) for name in job.designs}
    states = {
        name: initial_state(weights_key, training.compile_key)
        for name, training in trainings.items()
    }
    total = len(states) * (job.rounds + 1)
    seconds: dict[str, list[float]] = {name: [] for name in states}
    for turn in range(job.rounds + 1):  # the first one compiles
        steps = np.arange(turn * LOSS_EVERY, (turn + 1) * LOSS_EVERY, dtype=np.int32)
        for index, (name, training) in enumerate(trainings.items()):
            begin = time.perf_counter()
            rates = training.learning_rates(steps)
            state, _ = train_steps(states[name], key, steps, rates, training.compile_key)
            states[name] = jax.block_until_ready(state)
            seconds[name].append(time.perf_counter() - begin)
            report_share((turn * len(states) + index + 1) / total)
    timed = {name: np.asarray(values[1:]) for name, values in seconds.items()}
    ratios = {name: values / timed[BASELINE] for name, values in timed.items()}
    return {
        "rounds": job.rounds,
        "milliseconds": {name: 1e3 * float(np.median(v)) / LOSS_EVERY for name, v in timed.items()},
        "ratio": {name: float(np.median(values)) for name, values in ratios.items()},
        "ratio_quartiles": {
            name: [float(value) for value in np.quantile(values, (0.25, 0.75))]
            for name, values in ratios.items()
        },
    }
