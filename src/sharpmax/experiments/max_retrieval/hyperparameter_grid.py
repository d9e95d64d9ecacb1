"""Which unknown settings of the paper come closest to its Table 1?

We do not know whether logits are divided by the square root of the width, whether the decay is
decoupled or a term of the loss, and we only recall that training took 100,000 steps. Each
combination is trained from a few seeds and evaluated at several steps of the same training.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.experiments.jobs import Progress
from sharpmax.experiments.max_retrieval import paper
from sharpmax.experiments.max_retrieval.evaluation import (
    EvaluationJob,
    accuracies,
    evaluate_heads,
    spread,
)
from sharpmax.experiments.max_retrieval.table1 import METHODS
from sharpmax.experiments.max_retrieval.train import Training, train_all
from sharpmax.results import Result, Stopwatch

__all__ = ["Config", "run"]


@dataclass(frozen=True)
class Config:
    """Settings of the grid."""

    steps: tuple[int, ...] = (20_000, 50_000, 100_000)
    """Steps of one training at which it is evaluated, ascending; the training ends at the last."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds of each combination."""
    table_seeds: tuple[int, ...] = tuple(range(10))
    """Seeds of the combination of our Table 1, whose heads are trained anyway."""
    sizes: tuple[int, ...] = paper.SIZES
    """Numbers of items on which the heads are evaluated."""
    sets: int = 256
    """Sets per size and seed."""

    def trainings(self) -> dict[Training, tuple[int, ...]]:
        """List every combination of the unknown settings.

        Returns:
            The seeds of each combination.
        """
        *kept, last = self.steps
        return {
            Training(steps=last, scaled=scaled, decoupled=decoupled, kept_at=tuple(kept)): (
                self.table_seeds if scaled and decoupled else self.seeds
            )
            for scaled, decoupled in product((True, False), repeat=2)
        }


QUICK = Config(steps=(2_000, 5_000, 10_000), seeds=(0,), table_seeds=(0,), sets=128)
"""Minutes instead of hours."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: Path = Path("results/training"),
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Train and evaluate every combination of the unknown settings.

    Args:
        config: Steps, seeds, sizes and sets.
        folder: Checkpoints are saved here and resumed; the trainings of Table 1 are reused.
        processes: Heads that are trained at a time; the number of cores by default.
        progress: Called while heads are trained and evaluated.

    Returns:
        A result of kind `unknowns`: one cell per combination and step, and the closest of them.

    Raises:
        UserError: If the settings are out of range or a training diverges.
    """
    watch = Stopwatch()
    pairs = [(training, seed) for training, seeds in config.trainings().items() for seed in seeds]
    trained = train_all(pairs, folder, processes, progress)
    heads = {pair: head.weights for pair, head in zip(pairs, trained, strict=True)}
    triples = [(training, seed, step) for training, seed in pairs for step in config.steps]
    jobs = [
        EvaluationJob(
            heads[training, seed][step],
            training.scaled,
            training.task,
            seed,
            config.sizes,
            config.sets,
            METHODS,
        )
        for training, seed, step in triples
    ]
    evaluations = dict(zip(triples, evaluate_heads(jobs, processes, progress), strict=True))
    cells = []
    for training, seeds in config.trainings().items():
        for step in config.steps:
            group = [evaluations[training, seed, step] for seed in seeds]
            accuracy = {name: accuracies(group, name) for name in METHODS}
            cells.append(_cell(training, step, config.sizes, accuracy))
    return Result(
        kind="unknowns",
        config=asdict(config),
        seeds=tuple(sorted({*config.seeds, *config.table_seeds})),
        measurements={
            "cells": cells,
            "closest": min(range(len(cells)), key=lambda i: cells[i]["distance"]["mean"]),
            "paper": {str(size): row._asdict() for size, row in paper.TABLE1.items()},
        },
        provenance=watch.provenance(),
    )


def _cell(
    training: Training, step: int, sizes: tuple[int, ...], accuracy: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Describe one combination at one step, with its distance from the paper's table in points."""
    known = [index for index, size in enumerate(sizes) if size in paper.TABLE1]
    printed = {
        name: np.asarray([getattr(paper.TABLE1[sizes[index]], name) for index in known])
        for name in ("baseline", "adaptive")
    }
    apart = {name: np.abs(100 * accuracy[name].mean(0)[known] - printed[name]) for name in printed}
    both = np.concatenate(list(apart.values()))
    return {
        "scaled": training.scaled,
        "decoupled": training.decoupled,
        "steps": step,
        "seeds": len(accuracy["baseline"]),
        "accuracy": accuracy,  # [seed, size]
        "mean": {name: values.mean(0) for name, values in accuracy.items()},
        "std": {name: spread(values) for name, values in accuracy.items()},
        "distance": {
            "mean": float(both.mean()),
            "worst": float(both.max()),
            "worst_baseline": float(apart["baseline"].max()),
        },
    }
