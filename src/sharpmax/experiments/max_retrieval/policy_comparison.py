"""Compare other policies on the same trained heads, at inference only; not in the paper.

A policy that makes every head hard would win at finding maxima. So each policy is also tried on
heads that were trained, with the same settings, to name the most frequent class of a set. A policy
counts as better only if it stays within one point of plain softmax on this *guard task*, at every
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax.experiments.jobs import Progress
from sharpmax.experiments.max_retrieval import heads, paper, polynomial_fit
from sharpmax.experiments.max_retrieval.evaluation import (
    Evaluation,
    accuracies,
    evaluate_heads,
    jobs_for_heads,
    paired_p,
    spread,
)
from sharpmax.experiments.max_retrieval.model import Normaliser
from sharpmax.normalisers import AdaptiveTemperature, Hard
from sharpmax.ops import inverse_temperature_for_entropy, softmax
from sharpmax.policies import PAPER, LogLength, Polynomial, Saturating
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

__all__ = ["Config", "run"]

TASKS = ("max", "most-frequent")
GUARD_LOSS = 0.01
"""The accuracy that a policy may lose on the guard task."""


@dataclass(frozen=True)
class Config:
    """Settings of the comparison."""

    sizes: tuple[int, ...] = paper.SIZES
    """Numbers of items on which the heads are evaluated."""
    sets: int = 1_024
    """Sets per size and seed."""
    reference: int = 16
    """The largest size in training: where `LogLength` begins, and whose entropy is the target."""
    fit: polynomial_fit.Config = field(default_factory=polynomial_fit.Config)
    """Settings of the refitted polynomials."""
    seeds: tuple[int, ...] | None = None
    """Seeds of the heads of each task; None for all."""


@dataclass(frozen=True)
class EntropyTarget:
    """Sharpen each set until its entropy is at most `nats`, for example the entropy in training."""

    nats: float
    most: float = 1e4
    """Largest inverse temperature: where logits are nearly equal, none is high enough."""

    def __call__(
        self, logits: Float[Array, "sets items"], *, where: Bool[Array, "sets items"]
    ) -> Float[Array, "sets items"]:
        scale = inverse_temperature_for_entropy(logits, self.nats, where=where)
        # Subtract the maximum first: a large scale would magnify the rounding of large logits.
        offsets = logits - jnp.max(jnp.where(where, logits, -jnp.inf), axis=1, keepdims=True)
        return softmax(offsets * jnp.minimum(scale, self.most)[:, None], where=where)


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Evaluate every policy on the heads of max retrieval and of the guard task.

    Args:
        config: Sizes, sets, heads and the settings of the refitted polynomials.
        processes: Heads that are evaluated at a time; the number of cores by default.
        progress: Called while heads are measured and evaluated.

    Returns:
        A result of kind `policies`.

    Raises:
        UserError: If the trained heads are not available.
    """
    watch = Stopwatch()
    fitted = polynomial_fit.run(config.fit, processes=processes, progress=progress)
    refitted = {
        f"refitted-{name.replace(' ', '-')}": Polynomial(tuple(coefficients))
        for name, coefficients in fitted.measurements["coefficients"].items()
        if name != "paper"
    }
    tasks: dict[str, Any] = {}
    for task in TASKS:
        trained = heads.load(task).only(config.seeds)
        target = _training_entropy(trained, config, processes)
        methods = build_methods(refitted, target, config.reference)
        jobs = jobs_for_heads(trained, config.sizes, config.sets, methods)
        evaluations = evaluate_heads(jobs, processes, progress, f"evaluating {task}")
        tasks[task] = {
            **_tabulate(evaluations),
            "target_nats": target,
            "heads_sha256": trained.sha256,
        }
    return Result(
        kind="policies",
        config=asdict(config),
        seeds=heads.load("max").only(config.seeds).seeds,
        measurements={
            "sizes": list(config.sizes),
            "tasks": tasks,
            "refitted": {name: policy.coefficients for name, policy in refitted.items()},
            "keeps_guard": keeps_guard(tasks["most-frequent"]["mean"]),
        },
        provenance=watch.provenance(),
    )


def build_methods(
    refitted: dict[str, Polynomial], target: float, reference: int
) -> dict[str, Normaliser]:
    """Return every method by name; `target` is the entropy in nats of `EntropyTarget`."""
    return {
        "plain": softmax,
        "paper": AdaptiveTemperature(PAPER),
        "saturating": AdaptiveTemperature(Saturating(PAPER)),
        **{name: AdaptiveTemperature(policy) for name, policy in refitted.items()},
        "log-length": AdaptiveTemperature(LogLength(reference)),
        "entropy-target": EntropyTarget(target),
        "argmax": Hard(),
    }


def keeps_guard(mean: dict[str, np.ndarray]) -> dict[str, bool]:
    """Return whether each method loses at most one point of the guard task, at every size."""
    return {
        name: bool((mean["plain"] - np.asarray(values)).max() <= GUARD_LOSS)
        for name, values in mean.items()
    }


def _training_entropy(trained: heads.Heads, config: Config, processes: int | None) -> float:
    """Return the mean entropy of the heads on sets of the largest size in their training."""
    # Another seed, so that the sets of the evaluation stay unseen.
    jobs = jobs_for_heads(
        trained,
        (config.reference,),
        config.sets,
        {"plain": softmax},
        seed_offset=polynomial_fit.FIT_SEED,
    )
    return float(np.mean([each.entropy.mean() for each in evaluate_heads(jobs, processes)]))


def _tabulate(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    accuracy = {name: accuracies(evaluations, name) for name in evaluations[0].correct}
    return {
        "accuracy": accuracy,  # [seed, size]
        "mean": {name: values.mean(0) for name, values in accuracy.items()},
        "std": {name: spread(values) for name, values in accuracy.items()},
        "p_against_paper": {
            name: paired_p(accuracy["paper"], values) for name, values in accuracy.items()
        },
    }
