"""Table 1: accuracy of max retrieval against the size of the set, with and without adaptive
temperature.

Ten heads are trained on sets of 5 to 16 items and examined on 16 to 16,384. Beside the two columns
of arXiv 2410.01104 stands the head's own argmax: where the largest logit is not the maximum's, no
temperature puts it right. So every wrong answer has one of two causes: *ranking*, the largest logit
belongs to an item of another class, or *dispersion*, it belongs to the right one and the answer is
wrong all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.experiments.max_retrieval import heads, paper
from sharpmax.experiments.max_retrieval.exam import Exam, Marks
from sharpmax.experiments.max_retrieval.model import Normaliser
from sharpmax.experiments.max_retrieval.settings import Training
from sharpmax.experiments.max_retrieval.statistics import paired_p, sampling_error, spread
from sharpmax.experiments.max_retrieval.sweep import Progress, examine_all, train_all
from sharpmax.experiments.max_retrieval.train import Job, read
from sharpmax.normalisers import Hard
from sharpmax.ops import adaptive_temperature_softmax, softmax
from sharpmax.results import Result, Stopwatch

METHODS: dict[str, Normaliser] = {
    "baseline": softmax,
    "adaptive": adaptive_temperature_softmax,
    "argmax": Hard(),
}


@dataclass(frozen=True)
class Config:
    training: Training = field(default_factory=Training)
    seeds: tuple[int, ...] = tuple(range(10))
    sizes: tuple[int, ...] = paper.SIZES
    sets: int = 1_024
    """Of every size, for every seed others: the standard error of the mean over ten seeds is at
    most 0.5 points."""


QUICK = Config(Training(steps=20_000, kept_at=()), seeds=(0, 1, 2), sets=256)
"""Minutes instead of an hour, the same shape."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: Path = Path("results/training"),
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """The table. Checkpoints are kept in `folder`, and taken up there; so are the heads."""
    watch = Stopwatch()
    wanted = [(config.training, seed) for seed in config.seeds]
    trained = train_all(wanted, folder, processes, progress)
    found = heads.gathered(config.training, trained)
    marks = examine_all([_exam(config, found, seed) for seed in config.seeds], processes, progress)
    result = Result(
        kind="table1",
        config=asdict(config),
        seeds=config.seeds,
        measurements={
            **tabulated(marks, config.sizes, config.sets),
            "training_seconds": [one.seconds for one in trained],
            "final_loss": [float(one.losses[-10:].mean()) for one in trained],
            "heads_sha256": found.sha256,
        },
        provenance=watch.provenance(),
    )
    return result.with_arrays(losses=np.stack([one.losses for one in trained]))


def heads_of(config: Config, folder: Path) -> heads.Heads:
    """The heads that a finished run has trained."""
    wanted = [Job(config.training, seed, folder) for seed in config.seeds]
    return heads.gathered(config.training, [read(job.path) for job in wanted])


def tabulated(marks: Sequence[Marks], sizes: Sequence[int], sets: int) -> dict[str, Any]:
    """Means, spreads, the paired test, and where the lost answers went."""
    accuracy = {name: accuracies(marks, name) for name in METHODS}
    baseline = accuracy["baseline"].mean(0)
    return {
        "sizes": list(sizes),
        "accuracy": accuracy,  # [seed, size]
        "mean": {name: values.mean(0) for name, values in accuracy.items()},
        "std": {name: spread(values) for name, values in accuracy.items()},
        "p": paired_p(accuracy["baseline"], accuracy["adaptive"]),
        "sampling_error": sampling_error(baseline, sets * len(marks)),
        "attribution": {name: attribution(marks, name) for name in ("baseline", "adaptive")},
        "entropy": np.mean([one.entropy.mean(1) for one in marks], axis=0),
        "weight_of_maximum": {
            name: np.mean([one.weight[name].mean(1) for one in marks], axis=0) for name in METHODS
        },
        "paper": {
            str(size): paper.TABLE1[size]._asdict() for size in sizes if size in paper.TABLE1
        },
    }


def accuracies(marks: Sequence[Marks], method: str) -> np.ndarray:
    """Share of right answers. -> [seeds sizes]"""
    return np.stack([one.right[method].mean(1) for one in marks])


def attribution(marks: Sequence[Marks], method: str) -> dict[str, np.ndarray]:
    """The share of all sets that was lost to each cause, and that was won in spite of one; mean
    over seeds, by size.
    """
    right = np.stack([one.right[method] for one in marks])
    ranked = np.stack([one.ranked for one in marks])
    return {
        "dispersion": (~right & ranked).mean((0, 2)),
        "ranking": (~right & ~ranked).mean((0, 2)),
        "right_by_luck": (right & ~ranked).mean((0, 2)),
    }


def _exam(config: Config, found: heads.Heads, seed: int) -> Exam:
    training: Training = config.training
    return Exam(
        found.of(seed), training.scaled, training.task, seed, config.sizes, config.sets, METHODS
    )
