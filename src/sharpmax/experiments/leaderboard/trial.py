"""One trial of the leaderboard: tune, train and evaluate one design on one task.

A trial is one job, so that what is compiled for tuning serves the rest. Its trainings leave
checkpoints, so an interrupted trial resumes.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sharpmax.experiments.jobs import ReportShare
from sharpmax.experiments.leaderboard.entries import BASELINE, METHODS, drop_in_methods
from sharpmax.experiments.max_retrieval.evaluation import (
    Evaluation,
    EvaluationJob,
    accuracies,
    attribute_errors,
    evaluate_head,
)
from sharpmax.experiments.max_retrieval.model import DESIGNS, Normaliser, bind_normaliser
from sharpmax.experiments.max_retrieval.train import (
    TrainedHead,
    Training,
    TrainingJob,
    package_versions,
    train,
)

TUNING_SEED = 1_000
"""Seed of the short trainings that choose a learning rate; no reported head has it."""

LAST = 0.2
"""Share of the steps, at the end, whose mean loss decides on a learning rate."""

RULES_VERSION = 1
"""Version of the tuning rules; a higher one does not reuse results of older rules."""

EVALUATION_COST = 3_000
"""Training steps that take about as long as one evaluation, for the progress bar."""


@dataclass(frozen=True)
class Budget:
    """The training and evaluation that every method gets."""

    steps: int = 5_000
    """Training steps of a reported head."""
    tuning_steps: int = 1_500
    """Steps of the short trainings that choose a learning rate."""
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    """Learning rates; the one with the lowest training loss is used."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the reported heads."""
    sizes: tuple[int, ...] = tuple(4**power for power in range(2, 8))
    """Numbers of items on which the heads are evaluated."""
    sets: int = 256
    """Sets per size and seed."""
    narrowest: float = 3e-4
    """Narrowest range of priorities in the augmented tracks: see `data.draw`."""


class Trial(NamedTuple):
    """A design on a task, with or without narrow ranges of priorities in training."""

    design: str
    task: str
    augmented: bool
    budget: Budget
    folder: Path
    put_in: tuple[str, ...] = METHODS
    """Methods that are put into its heads, if they are those of softmax and the method can be."""

    def training(self, steps: int, rate: float) -> Training:
        """Return the settings of one training."""
        return Training(
            task=self.task,
            steps=steps,
            learning_rate=rate,
            kept_at=(),
            design=self.design,
            narrowest=self.budget.narrowest if self.augmented else 1.0,
            falling=True,
        )

    @property
    def methods(self) -> dict[str, Normaliser]:
        """The methods its heads are evaluated with."""
        own = {self.design: DESIGNS[self.design].normaliser}
        if self.design != BASELINE:
            return own
        known = drop_in_methods()
        return own | {name: known[name] for name in known if name in self.put_in}

    @property
    def path(self) -> Path:
        """The file of its result, named after everything that the result depends on."""
        depends_on = {
            "unit": [self.design, self.task, self.augmented, asdict(self.budget)],
            "methods": {name: _method_name(method) for name, method in self.methods.items()},
            "versions": package_versions(),
            "rules": RULES_VERSION,
        }
        digest = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
        kind = "augmented" if self.augmented else "plain"
        return self.folder / "units" / f"{self.task}-{self.design}-{kind}-{digest[:8]}.json"


def _method_name(method: Normaliser) -> str:
    # The repr of a function contains its address in memory.
    return getattr(method, "__name__", repr(method))


class HeadsAtRate(NamedTuple):
    """The heads of all seeds, trained at one learning rate."""

    rate: float
    heads: list[TrainedHead]

    @property
    def worst(self) -> float:
        """The highest final loss; infinite if a training diverged."""
        losses = [_final_loss(head) for head in self.heads]
        return max(math.inf if loss is None else loss for loss in losses)


def run_trial(trial: Trial, report_share: ReportShare = lambda share: None) -> dict[str, Any]:
    """Tune the learning rate, train every seed and evaluate the heads."""
    begin = time.monotonic()
    reports = _split_progress(trial, report_share)
    tuning = _tune(trial, reports)
    chosen, given_up = _train(trial, tuning, reports)
    evaluations = [evaluate_head(_evaluation_job(trial, h), next(reports)) for h in chosen.heads]
    return {
        "learning_rate": chosen.rate,
        "tuning": {f"{rate:g}": loss for rate, loss in tuning.items()},
        "given_up": {
            f"{tried.rate:g}": [_final_loss(head) for head in tried.heads] for tried in given_up
        },
        "final_loss": [_final_loss(head) for head in chosen.heads],
        "diverged": [head.diverged for head in chosen.heads],
        "learned": _learned_fields(trial, chosen.heads),
        "methods": {name: _summarise(evaluations, name) for name in trial.methods},
        "seconds": time.monotonic() - begin,
    }


def _tune(trial: Trial, reports: Iterator[ReportShare]) -> dict[float, float | None]:
    """Return the final loss of a short training at each rate, lowest first; None if it diverged."""
    budget = trial.budget
    if len(budget.rates) == 1:
        return {budget.rates[0]: None}
    losses = {}
    for rate in budget.rates:
        job = TrainingJob(trial.training(budget.tuning_steps, rate), TUNING_SEED, trial.folder)
        losses[rate] = _final_loss(train(job, next(reports)))
    return dict(sorted(losses.items(), key=lambda item: math.inf if item[1] is None else item[1]))


def _train(
    trial: Trial, tuning: dict[float, float | None], reports: Iterator[ReportShare]
) -> tuple[HeadsAtRate, list[HeadsAtRate]]:
    """Train every seed at the best rate that works for the whole training.

    A rate is given up as too high if a seed ends with a higher loss than the short training had. If
    all rates are given up, the one whose worst seed is best is used. Returns the heads, and those
    of the rates that were given up.
    """
    budget, tried = trial.budget, list[HeadsAtRate]()
    seed_reports = [next(reports) for _ in budget.seeds]
    for rate, loss in tuning.items():
        heads = [
            train(TrainingJob(trial.training(budget.steps, rate), seed, trial.folder), report)
            for seed, report in zip(budget.seeds, seed_reports, strict=True)
        ]
        tried.append(HeadsAtRate(rate, heads))
        if len(tuning) == 1 or (loss is not None and tried[-1].worst <= loss):
            return tried[-1], tried[:-1]
    best = min(tried, key=lambda each: each.worst)
    return best, [each for each in tried if each is not best]


def _final_loss(head: TrainedHead) -> float | None:
    """Return the mean loss of the last steps; None if the training diverged."""
    if head.diverged:
        return None
    records = max(1, round(LAST * len(head.losses)))
    return float(head.losses[-records:].mean())


def _evaluation_job(trial: Trial, head: TrainedHead) -> EvaluationJob:
    training = trial.training(trial.budget.steps, 0.0)
    return EvaluationJob(
        head.weights[head.step],
        training.scaled,
        trial.task,
        head.seed,
        trial.budget.sizes,
        trial.budget.sets,
        trial.methods,
        DESIGNS[trial.design],
    )


def _learned_fields(trial: Trial, heads: list[TrainedHead]) -> dict[str, list[float | None]]:
    """Return the learned fields of the normaliser, one value per seed."""
    design = DESIGNS[trial.design]
    methods = [
        bind_normaliser(jax.tree.map(jnp.asarray, head.weights[head.step]), design)
        for head in heads
    ]
    return {
        name: _finite(np.asarray([np.asarray(getattr(method, name)).item() for method in methods]))
        for name in design.learned
    }


def _summarise(evaluations: list[Evaluation], method: str) -> dict[str, Any]:
    """Return means over sets, each [seed][size]."""
    causes = [attribute_errors([evaluation], method) for evaluation in evaluations]
    return {
        "accuracy": accuracies(evaluations, method).tolist(),
        "sharpness": [_finite(each.sharpness[method].mean(1)) for each in evaluations],
        "ranked": [each.argmax_correct.mean(1).tolist() for each in evaluations],
        **{name: [each[name].tolist() for each in causes] for name in ("dispersion", "ranking")},
    }


def _finite(values: np.ndarray) -> list[float | None]:
    """Return the values, None for those that are not finite because a training diverged."""
    return [float(value) if np.isfinite(value) else None for value in values]


def _split_progress(trial: Trial, report_share: ReportShare) -> Iterator[ReportShare]:
    """Yield, for each part of the trial, a callback that turns its share into one of the whole."""
    budget = trial.budget
    tuning = [budget.tuning_steps] * (len(budget.rates) if len(budget.rates) > 1 else 0)
    seeds = len(budget.seeds)
    costs = np.asarray([*tuning, *[budget.steps] * seeds, *[EVALUATION_COST] * seeds], float)
    ends = np.cumsum(costs) / costs.sum()
    for begin, end in zip([0.0, *ends[:-1]], ends, strict=True):
        yield partial(_report_part, report_share, float(begin), float(end))


def _report_part(report_share: ReportShare, begin: float, end: float, share: float) -> None:
    report_share(begin + share * (end - begin))
