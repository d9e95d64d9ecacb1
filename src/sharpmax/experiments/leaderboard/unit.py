"""One unit of work: a design tuned, trained and examined on a task.

All of it in one job, since what was compiled to tune it serves the rest. Trainings leave
checkpoints, so a unit that was killed goes on where it was.
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

from sharpmax.experiments.jobs import Tell
from sharpmax.experiments.leaderboard.entries import BASELINE, put_in
from sharpmax.experiments.max_retrieval.designs import DESIGNS
from sharpmax.experiments.max_retrieval.exam import Exam, Marks, examine
from sharpmax.experiments.max_retrieval.model import Normaliser, bound
from sharpmax.experiments.max_retrieval.settings import Training
from sharpmax.experiments.max_retrieval.table1 import accuracies, attribution
from sharpmax.experiments.max_retrieval.train import Job, Trained, train, versions

TUNING_SEED = 1_000
"""Of the trainings that choose a learning rate: none of those that are reported."""

LAST = 0.2
"""Share of the steps whose losses decide on a learning rate."""

RULES = 1
"""Of tuning; a number more where they change, so that what was found by others is not mixed in."""

EXAM_COSTS = 3_000
"""Training steps that take as long as one exam, about: for the progress."""


@dataclass(frozen=True)
class Budget:
    """What every method is given."""

    steps: int = 5_000
    tuning_steps: int = 1_500
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    """Learning rates, of which the one of lowest training loss is taken."""
    seeds: tuple[int, ...] = (0, 1, 2)
    sizes: tuple[int, ...] = tuple(4**power for power in range(2, 8))
    sets: int = 256
    """Of every size, for every seed others."""
    narrowest: float = 3e-4
    """In the augmented tracks: see `data.draw`."""


class Unit(NamedTuple):
    """A design on a task, with or without narrow ranges."""

    design: str
    task: str
    augmented: bool
    budget: Budget
    folder: Path

    def training(self, steps: int, rate: float) -> Training:
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
        """What its heads are examined with: those of softmax with all that can be put into them."""
        own = {self.design: DESIGNS[self.design].normaliser}
        return own if self.design != BASELINE else own | put_in()

    @property
    def record(self) -> Path:
        """Where what was found is kept, apart for all that it depends on."""
        made_of = {
            "unit": [self.design, self.task, self.augmented, asdict(self.budget)],
            "methods": {name: _named(method) for name, method in self.methods.items()},
            "versions": versions(),
            "rules": RULES,
        }
        digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
        kind = "augmented" if self.augmented else "plain"
        return self.folder / "units" / f"{self.task}-{self.design}-{kind}-{digest[:8]}.json"


def _named(method: Normaliser) -> str:
    # A function's repr has its address in memory.
    return getattr(method, "__name__", repr(method))


def perform(unit: Unit, tell: Tell = lambda share: None) -> dict[str, Any]:
    """Tune, train every seed, examine; what the leaderboard says of it."""
    begun = time.monotonic()
    told = _shares(unit, tell)
    tuning = _tune(unit, told)
    trained, given_up = _train(unit, tuning, told)
    marks = [examine(_exam(unit, one), next(told)) for one in trained.heads]
    return {
        "learning_rate": trained.rate,
        "tuning": {f"{rate:g}": loss for rate, loss in tuning.items()},
        "given_up": {f"{one.rate:g}": [_last_loss(head) for head in one.heads] for one in given_up},
        "final_loss": [_last_loss(one) for one in trained.heads],
        "diverged": [one.diverged for one in trained.heads],
        "learned": _learned(unit, trained.heads),
        "methods": {name: _summary(marks, name) for name in unit.methods},
        "seconds": time.monotonic() - begun,
    }


class Heads(NamedTuple):
    """Every seed, trained at one learning rate."""

    rate: float
    heads: list[Trained]

    @property
    def worst(self) -> float:
        """The highest training loss at the end; infinite if one diverged."""
        losses = [_last_loss(one) for one in self.heads]
        return max(math.inf if loss is None else loss for loss in losses)


def _tune(unit: Unit, told: Iterator[Tell]) -> dict[float, float | None]:
    """The training loss that each rate led to, the lowest first; None if it diverged."""
    budget = unit.budget
    if len(budget.rates) == 1:
        return {budget.rates[0]: None}
    losses = {}
    for rate in budget.rates:
        job = Job(unit.training(budget.tuning_steps, rate), TUNING_SEED, unit.folder)
        losses[rate] = _last_loss(train(job, next(told)))
    return dict(sorted(losses.items(), key=lambda one: math.inf if one[1] is None else one[1]))


def _train(
    unit: Unit, tuning: dict[float, float | None], told: Iterator[Tell]
) -> tuple[Heads, list[Heads]]:
    """Every seed, at the best rate that bears the whole training; and the rates that did not.

    A rate is given up if a seed ends with a higher loss than the short training had: it was too
    high. If all are, the one whose worst seed is best is taken.
    """
    budget, tried, tells = unit.budget, list[Heads](), [next(told) for _ in unit.budget.seeds]
    for rate, loss in tuning.items():
        heads = [
            train(Job(unit.training(budget.steps, rate), seed, unit.folder), tell)
            for seed, tell in zip(budget.seeds, tells, strict=True)
        ]
        tried.append(Heads(rate, heads))
        if len(tuning) == 1 or (loss is not None and tried[-1].worst <= loss):
            return tried[-1], tried[:-1]
    best = min(tried, key=lambda one: one.worst)
    return best, [one for one in tried if one is not best]


def _last_loss(trained: Trained) -> float | None:
    if trained.diverged:
        return None
    records = max(1, round(LAST * len(trained.losses)))
    return float(trained.losses[-records:].mean())


def _exam(unit: Unit, trained: Trained) -> Exam:
    training = unit.training(unit.budget.steps, 0.0)
    return Exam(
        trained.weights[trained.step],
        training.scaled,
        unit.task,
        trained.seed,
        unit.budget.sizes,
        unit.budget.sets,
        unit.methods,
        DESIGNS[unit.design],
    )


def _learned(unit: Unit, trained: list[Trained]) -> dict[str, list[float | None]]:
    """What became of the normaliser's own fields, seed by seed."""
    design = DESIGNS[unit.design]
    methods = [bound(jax.tree.map(jnp.asarray, one.weights[one.step]), design) for one in trained]
    return {
        name: _finite(np.asarray([np.asarray(getattr(method, name)).item() for method in methods]))
        for name in design.learned
    }


def _summary(marks: list[Marks], method: str) -> dict[str, Any]:
    """Means over sets; [seed][size]."""
    causes = [attribution([one], method) for one in marks]
    return {
        "accuracy": accuracies(marks, method).tolist(),
        "sharpness": [_finite(one.sharpness[method].mean(1)) for one in marks],
        "ranked": [one.ranked.mean(1).tolist() for one in marks],
        **{name: [one[name].tolist() for one in causes] for name in ("dispersion", "ranking")},
    }


def _finite(values: np.ndarray) -> list[float | None]:
    """None for what a head that diverged has made of it."""
    return [float(value) if np.isfinite(value) else None for value in values]


def _shares(unit: Unit, tell: Tell) -> Iterator[Tell]:
    """For each piece of the work in turn, what turns its share into one of the whole."""
    budget = unit.budget
    tuning = [budget.tuning_steps] * (len(budget.rates) if len(budget.rates) > 1 else 0)
    seeds = len(budget.seeds)
    costs = np.asarray([*tuning, *[budget.steps] * seeds, *[EXAM_COSTS] * seeds], float)
    ends = np.cumsum(costs) / costs.sum()
    for begin, end in zip([0.0, *ends[:-1]], ends, strict=True):
        yield partial(_tell_of, tell, float(begin), float(end))


def _tell_of(tell: Tell, begin: float, end: float, share: float) -> None:
    tell(begin + share * (end - begin))
