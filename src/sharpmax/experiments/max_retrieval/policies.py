"""Beyond the paper, at inference only: other ways to sharpen the same trained heads, and what they
cost on a task that needs an average.

A policy that makes every head hard would win at finding maxima. So each is also tried on heads that
were trained, in the same way, to name the most frequent class of a set: a method counts as better
only if it keeps that *guard task* within one point of plain softmax at every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sharpmax.experiments.max_retrieval import fit, heads, paper
from sharpmax.experiments.max_retrieval.exam import (
    EntropyTarget,
    Exam,
    Marks,
)
from sharpmax.experiments.max_retrieval.model import Normaliser
from sharpmax.experiments.max_retrieval.statistics import paired_p, spread
from sharpmax.experiments.max_retrieval.sweep import Progress, examine_all
from sharpmax.experiments.max_retrieval.table1 import accuracies
from sharpmax.normalisers import AdaptiveTemperature, Hard
from sharpmax.ops import softmax
from sharpmax.policies import PAPER, LogLength, Polynomial, Saturating
from sharpmax.results import Result, Stopwatch

TASKS = ("max", "most-frequent")
GUARD = 0.01
"""What a method may lose on the guard task."""


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = paper.SIZES
    sets: int = 1_024
    reference: int = 16
    """The largest size in training: where `LogLength` begins, and whose entropy is the target."""
    fit: fit.Config = field(default_factory=fit.Config)
    seeds: tuple[int, ...] | None = None
    """Of the heads of each task; None for all that come with the package."""


def methods_of(
    refitted: dict[str, Polynomial], target: float, reference: int
) -> dict[str, Normaliser]:
    """Every method by name."""
    return {
        "plain": softmax,
        "paper": AdaptiveTemperature(PAPER),
        "saturating": AdaptiveTemperature(Saturating(PAPER)),
        **{name: AdaptiveTemperature(policy) for name, policy in refitted.items()},
        "log-length": AdaptiveTemperature(LogLength(reference)),
        "entropy-target": EntropyTarget(target),
        "argmax": Hard(),
    }


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    watch = Stopwatch()
    fitting = fit.run(config.fit, processes=processes, progress=progress)
    refitted = {
        f"refitted-{name.replace(' ', '-')}": Polynomial(tuple(coefficients))
        for name, coefficients in fitting.measurements["coefficients"].items()
        if name != "paper"
    }
    found: dict[str, Any] = {}
    for task in TASKS:
        trained = heads.load(task).only(config.seeds)
        target = _own_entropy(trained, config, processes)
        methods = methods_of(refitted, target, config.reference)
        exams = [
            Exam(
                trained.of(seed),
                trained.training.scaled,
                task,
                seed,
                config.sizes,
                config.sets,
                methods,
            )
            for seed in trained.seeds
        ]
        found[task] = _tabulated(examine_all(exams, processes, progress, f"examining {task}"))
        found[task]["target_nats"] = target
        found[task]["heads_sha256"] = trained.sha256
    return Result(
        kind="policies",
        config=asdict(config),
        seeds=heads.load("max").only(config.seeds).seeds,
        measurements={
            "sizes": list(config.sizes),
            "tasks": found,
            "refitted": {name: policy.coefficients for name, policy in refitted.items()},
            "keeps_guard": keeps_guard(found["most-frequent"]["mean"]),
        },
        provenance=watch.provenance(),
    )


def keeps_guard(mean: dict[str, np.ndarray]) -> dict[str, bool]:
    """Whether each method loses at most a point of the guard task, whatever the size."""
    return {
        name: bool((mean["plain"] - np.asarray(values)).max() <= GUARD)
        for name, values in mean.items()
    }


def _own_entropy(trained: heads.Heads, config: Config, processes: int | None) -> float:
    """The mean entropy of the heads on sets of the largest size of their training."""
    exams = [
        # Of sets of another seed: what is examined later stays unseen.
        Exam(
            trained.of(seed),
            trained.training.scaled,
            trained.training.task,
            fit.FITTING + seed,
            (config.reference,),
            config.sets,
            {"plain": softmax},
        )
        for seed in trained.seeds
    ]
    return float(np.mean([marks.entropy.mean() for marks in examine_all(exams, processes)]))


def _tabulated(marks: Sequence[Marks]) -> dict[str, Any]:
    accuracy = {name: accuracies(marks, name) for name in marks[0].right}
    return {
        "accuracy": accuracy,  # [seed, size]
        "mean": {name: values.mean(0) for name, values in accuracy.items()},
        "std": {name: spread(values) for name, values in accuracy.items()},
        "p_against_paper": {
            name: paired_p(accuracy["paper"], values) for name, values in accuracy.items()
        },
    }
