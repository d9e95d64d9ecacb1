"""What is not known about Table 1, tried: which settings come closest to it.

Unknown are whether logits are divided by the square root of the width, whether the decay is
decoupled or a term of the loss, and, from recollection only, that training took 100,000 steps. Each
combination is trained from a few seeds and examined at several steps of the same training.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.experiments.max_retrieval import paper
from sharpmax.experiments.max_retrieval.exam import Exam
from sharpmax.experiments.max_retrieval.settings import Training
from sharpmax.experiments.max_retrieval.statistics import spread
from sharpmax.experiments.max_retrieval.sweep import Progress, examine_all, train_all
from sharpmax.experiments.max_retrieval.table1 import METHODS, accuracies
from sharpmax.results import Result, Stopwatch


@dataclass(frozen=True)
class Config:
    steps: tuple[int, ...] = (20_000, 50_000, 100_000)
    """Of one training, ascending: the last is where it ends."""
    seeds: tuple[int, ...] = (0, 1)
    table_seeds: tuple[int, ...] = tuple(range(10))
    """For the settings of our Table 1, whose heads are trained anyway."""
    sizes: tuple[int, ...] = paper.SIZES
    sets: int = 256

    def trainings(self) -> dict[Training, tuple[int, ...]]:
        """Every combination, and the seeds that it is tried with."""
        *kept, last = self.steps
        return {
            Training(steps=last, scaled=scaled, decoupled=decoupled, kept_at=tuple(kept)): (
                self.table_seeds if scaled and decoupled else self.seeds
            )
            for scaled, decoupled in product((True, False), repeat=2)
        }


QUICK = Config(steps=(2_000, 5_000, 10_000), seeds=(0,), table_seeds=(0,), sets=128)


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: Path = Path("results/training"),
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Every combination; trainings that Table 1 has made are taken from the folder."""
    watch = Stopwatch()
    wanted = [(training, seed) for training, seeds in config.trainings().items() for seed in seeds]
    trained = train_all(wanted, folder, processes, progress)
    heads = {pair: one.weights for pair, one in zip(wanted, trained, strict=True)}
    asked = [(training, seed, step) for training, seed in wanted for step in config.steps]
    exams = [
        Exam(
            heads[training, seed][step],
            training.scaled,
            training.task,
            seed,
            config.sizes,
            config.sets,
            METHODS,
        )
        for training, seed, step in asked
    ]
    marks = dict(zip(asked, examine_all(exams, processes, progress), strict=True))
    cells = []
    for training, seeds in config.trainings().items():
        for step in config.steps:
            group = [marks[training, seed, step] for seed in seeds]
            found = {name: accuracies(group, name) for name in METHODS}
            cells.append(_cell(training, step, config.sizes, found))
    closest = min(range(len(cells)), key=lambda place: cells[place]["distance"]["mean"])
    return Result(
        kind="unknowns",
        config=asdict(config),
        seeds=tuple(sorted({*config.seeds, *config.table_seeds})),
        measurements={
            "cells": cells,
            "closest": closest,
            "paper": {str(size): row._asdict() for size, row in paper.TABLE1.items()},
        },
        provenance=watch.provenance(),
    )


def _cell(
    training: Training, step: int, sizes: tuple[int, ...], found: dict[str, np.ndarray]
) -> dict[str, Any]:
    """One combination after so many steps, and how far from the table it is, in points."""
    known = [place for place, size in enumerate(sizes) if size in paper.TABLE1]
    printed = {
        name: np.asarray([getattr(paper.TABLE1[sizes[place]], name) for place in known])
        for name in ("baseline", "adaptive")
    }
    apart = {name: np.abs(100 * found[name].mean(0)[known] - printed[name]) for name in printed}
    both = np.concatenate(list(apart.values()))
    return {
        "scaled": training.scaled,
        "decoupled": training.decoupled,
        "steps": step,
        "seeds": len(found["baseline"]),
        "accuracy": found,  # [seed, size]
        "mean": {name: values.mean(0) for name, values in found.items()},
        "std": {name: spread(values) for name, values in found.items()},
        "distance": {
            "mean": float(both.mean()),
            "worst": float(both.max()),
            "worst_baseline": float(apart["baseline"].max()),
        },
    }
