"""Table 1: accuracy of max retrieval by set size, with and without adaptive temperature.

Ten heads are trained on sets of 5 to 16 items and evaluated on 16 to 16,384. Next to the two
columns of arXiv 2410.01104 we show the argmax of the same head: where the largest logit is not that
of the maximum, no temperature can help. So every wrong answer has one of two causes: *ranking* (the
largest logit belongs to an item of another class) or *dispersion* (it belongs to the right class,
and the answer is wrong all the same).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.experiments.jobs import Progress
from sharpmax.experiments.max_retrieval import heads, paper
from sharpmax.experiments.max_retrieval.evaluation import (
    Evaluation,
    accuracies,
    attribute_errors,
    evaluate_heads,
    jobs_for_heads,
    paired_p,
    sampling_error,
    spread,
)
from sharpmax.experiments.max_retrieval.model import Normaliser
from sharpmax.experiments.max_retrieval.train import (
    Training,
    TrainingJob,
    load_checkpoint,
    train_all,
)
from sharpmax.normalisers import Hard
from sharpmax.ops import adaptive_temperature_softmax, softmax
from sharpmax.results import Result, Stopwatch

__all__ = ["Config", "run"]

METHODS: dict[str, Normaliser] = {
    "baseline": softmax,
    "adaptive": adaptive_temperature_softmax,
    "argmax": Hard(),
}


@dataclass(frozen=True)
class Config:
    """Settings of Table 1."""

    training: Training = field(default_factory=Training)
    """How every head is trained."""
    seeds: tuple[int, ...] = tuple(range(10))
    """One head is trained per seed."""
    sizes: tuple[int, ...] = paper.SIZES
    """Numbers of items on which the heads are evaluated."""
    sets: int = 1_024
    """Sets per size and seed. With ten seeds the standard error of a mean is at most 0.5 points."""


QUICK = Config(Training(steps=20_000, kept_at=()), seeds=(0, 1, 2), sets=256)
"""Minutes instead of an hour, the same shape of the curves."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    folder: Path = Path("results/training"),
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Train the heads, evaluate them at every size and tabulate the accuracies.

    Args:
        config: Training, seeds, sizes and sets.
        folder: Checkpoints are saved here; an interrupted run resumes from them.
        processes: Heads that are trained at a time; the number of cores by default.
        progress: Called while heads are trained and evaluated.

    Returns:
        A result of kind `table1` with the array `losses`, [seed, record].

    Raises:
        UserError: If the settings are out of range or a training diverges.
    """
    watch = Stopwatch()
    trained = train_all(
        [(config.training, seed) for seed in config.seeds], folder, processes, progress
    )
    collected = heads.collect_heads(config.training, trained)
    evaluations = evaluate_heads(
        jobs_for_heads(collected, config.sizes, config.sets, METHODS), processes, progress
    )
    result = Result(
        kind="table1",
        config=asdict(config),
        seeds=config.seeds,
        measurements={
            **tabulate(evaluations, config.sizes, config.sets),
            "training_seconds": [head.seconds for head in trained],
            "final_loss": [float(head.losses[-10:].mean()) for head in trained],
            "heads_sha256": collected.sha256,
        },
        provenance=watch.provenance(),
    )
    return result.with_arrays(losses=np.stack([head.losses for head in trained]))


def load_trained_heads(config: Config, folder: Path) -> heads.Heads:
    """Return the heads that a finished run has trained."""
    jobs = [TrainingJob(config.training, seed, folder) for seed in config.seeds]
    return heads.collect_heads(config.training, [load_checkpoint(job.path) for job in jobs])


def tabulate(evaluations: Sequence[Evaluation], sizes: Sequence[int], sets: int) -> dict[str, Any]:
    """Return means, spreads, the paired test and the causes of wrong answers."""
    accuracy = {name: accuracies(evaluations, name) for name in METHODS}
    baseline = accuracy["baseline"].mean(0)
    return {
        "sizes": list(sizes),
        "accuracy": accuracy,  # [seed, size]
        "mean": {name: values.mean(0) for name, values in accuracy.items()},
        "std": {name: spread(values) for name, values in accuracy.items()},
        "p": paired_p(accuracy["baseline"], accuracy["adaptive"]),
        "sampling_error": sampling_error(baseline, sets * len(evaluations)),
        "attribution": {
            name: attribute_errors(evaluations, name) for name in ("baseline", "adaptive")
        },
        "entropy": np.mean([evaluation.entropy.mean(1) for evaluation in evaluations], axis=0),
        "weight_of_maximum": {
            name: np.mean([evaluation.weight[name].mean(1) for evaluation in evaluations], axis=0)
            for name in METHODS
        },
        "paper": {
            str(size): paper.TABLE1[size]._asdict() for size in sizes if size in paper.TABLE1
        },
    }
