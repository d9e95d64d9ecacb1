"""Figure 6: where the paper's polynomial comes from, and our own fits.

For each set there is an inverse temperature b at which the true maximum has the largest weight. The
weight p = exp(b e) / sum_j exp(b e_j) of the item with logit e changes with b as

    d log p / d b = e - E_b[e],

and E_b[e], the mean logit under softmax(b e), rises with b. So the best b is the one root of
E_b[e] = e. It is infinite where the maximum has the largest logit (the colder the better) and zero
where its logit is below the average. The finite values, plotted against the entropy of the set, are
the cloud to which a polynomial of degree four is fitted in two ways: to the inverse temperatures,
where the largest values decide, and with 1 / polynomial to the temperatures, where they do not.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq, least_squares

from sharpmax.experiments.jobs import Progress, ReportShare, label_progress, run_jobs
from sharpmax.experiments.max_retrieval import data, heads, paper
from sharpmax.experiments.max_retrieval.model import encode
from sharpmax.ops import entropy
from sharpmax.policies import PAPER, Polynomial, fit_polynomial
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["Config", "run"]

FIT_SEED = 2_000_000
"""Added to the seed of a head, for sets that neither training nor evaluation uses."""

LARGEST_ENTROPY = 10.0
"""End of the range in which `sharpening_ranges` looks: 16,384 items have at most 9.7 nats."""

SMALLEST = 0.5
"""Smaller inverse temperatures count as this: adaptive temperature never goes below 1, and one
value near 0 would decide the whole fit to temperatures."""

FIRST_CUT = 5.0
"""Inverse temperatures are cut here for the first guess of the fit to temperatures."""


@dataclass(frozen=True)
class Config:
    """Settings of Figure 6."""

    sizes: tuple[int, ...] = paper.SIZES
    """Numbers of items."""
    sets: int = 64
    """Sets per size and head."""
    degree: int = 4
    """Degree of the polynomials."""
    seeds: tuple[int, ...] | None = None
    """Seeds of the heads; None for all ten of Table 1."""


class Cloud(NamedTuple):
    """One point per set of one head."""

    size: Int[np.ndarray, " points"]
    entropy: Float[np.ndarray, " points"]
    best: Float[np.ndarray, " points"]
    """The inverse temperature at which the maximum has the largest weight; infinite where it has
    the largest logit."""


class FitJob(NamedTuple):
    """One head whose sets are measured."""

    weights: dict[str, np.ndarray]
    scaled: bool
    seed: int
    config: Config


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Measure the best inverse temperature of many sets and fit polynomials to the cloud.

    Args:
        config: Sizes, sets, degree and heads.
        processes: Heads that are measured at a time; the number of cores by default.
        progress: Called while heads are measured.

    Returns:
        A result of kind `figure6` with the arrays `size`, `entropy` and `best` of all points.

    Raises:
        UserError: If the trained heads are not available.
    """
    watch = Stopwatch()
    trained = heads.load("max").only(config.seeds)
    jobs = [
        FitJob(trained.of(seed), trained.training.scaled, seed, config) for seed in trained.seeds
    ]
    report = label_progress("fitting", len(jobs), progress)
    clouds = run_jobs(measure_cloud, jobs, processes=processes, progress=report)
    size, entropies, best = (np.concatenate(columns) for columns in zip(*clouds, strict=True))
    usable = np.isfinite(best) & (best > 0)
    fits = fit_policies(entropies[usable], best[usable], config.degree)
    measurements = {
        "points": len(best),
        "leading": {str(n): float(np.isinf(best[size == n]).mean()) for n in config.sizes},
        "below_average": float((best == 0).mean()),
        "coefficients": {name: policy.coefficients for name, policy in fits.items()},
        "threshold": PAPER.threshold,
        "sharpens": {name: sharpening_ranges(policy) for name, policy in fits.items()},
        "entropies": [float(entropies[usable].min()), float(entropies[usable].max())],
        "temperature_error": {
            name: _temperature_error(policy, entropies[usable], best[usable])
            for name, policy in fits.items()
        },
        "heads_sha256": trained.sha256,
    }
    return Result(
        kind="figure6",
        config=asdict(config),
        seeds=trained.seeds,
        measurements=measurements,
        provenance=watch.provenance(),
    ).with_arrays(size=size, entropy=entropies, best=np.where(np.isinf(best), np.nan, best))


def measure_cloud(job: FitJob, report_share: ReportShare = lambda share: None) -> Cloud:
    """Measure the entropy and the best inverse temperature of every set of one head."""
    weights = {name: jnp.asarray(array) for name, array in job.weights.items()}
    rows: list[tuple[int, float, float]] = []
    for size in job.config.sizes:
        key = jax.random.fold_in(jax.random.key(FIT_SEED + job.seed), size)
        for number in range(job.config.sets):
            logits, row_entropy, maximum = jax.device_get(
                _draw_logits(weights, jax.random.fold_in(key, number), size, job.scaled)
            )
            rows.append((size, float(row_entropy), best_inverse_temperature(logits, int(maximum))))
        report_share(len(rows) / (job.config.sets * len(job.config.sizes)))
    return Cloud(*(np.asarray(column) for column in zip(*rows, strict=True)))


@partial(jax.jit, static_argnames=("size", "scaled"))
def _draw_logits(weights: Any, key: Any, size: int, scaled: bool) -> tuple[Any, Any, Any]:
    """Return the logits of one random set, their entropy and the index of the maximum."""
    sets = data.draw("max", key, 1, size, size)
    (logits,) = encode(weights, sets, scaled=scaled).logits
    return logits[0], entropy(logits)[0], data.argmax_present(sets.priority, sets.present)[0]


def best_inverse_temperature(logits: Float[np.ndarray, " items"], index: int) -> float:
    """Return the inverse temperature at which the item at `index` has its largest weight."""
    offsets = np.asarray(logits, np.float64) - np.max(logits)
    own = offsets[index]
    if own == 0:
        return math.inf

    def excess(scale: float) -> float:
        weights = np.exp(scale * offsets)
        return float(weights @ offsets / weights.sum() - own)

    if excess(0.0) >= 0:
        return 0.0
    above = 1.0
    while excess(above) < 0:
        above *= 2
    return float(brentq(excess, 0.0, above, xtol=1e-6))


def fit_policies(
    entropies: Float[np.ndarray, " points"],
    inverse_temperatures: Float[np.ndarray, " points"],
    degree: int = 4,
) -> dict[str, Polynomial]:
    """Return the fits to temperatures and to inverse temperatures, and the paper's polynomial."""
    plain = fit_polynomial(entropies, inverse_temperatures, degree)
    # Sets whose best inverse temperature is a hundred have a temperature of almost zero: with these
    # cut off, the plain fit is a good first guess.
    first = fit_polynomial(entropies, np.minimum(inverse_temperatures, FIRST_CUT), degree)

    def residual(coefficients: np.ndarray) -> np.ndarray:
        values = np.maximum(np.polyval(coefficients, entropies), SMALLEST)
        return 1 / values - 1 / np.maximum(inverse_temperatures, SMALLEST)

    solution = least_squares(residual, first.coefficients, x_scale="jac")
    return {
        "temperature": Polynomial(tuple(solution.x.tolist())),
        "inverse temperature": plain,
        "paper": PAPER,
    }


def sharpening_ranges(policy: Polynomial) -> list[tuple[float, float]]:
    """Return the ranges of entropy, in nats, in which a policy sharpens at all."""
    grid = np.linspace(0, LARGEST_ENTROPY, 10_001)
    on = np.r_[False, np.asarray(policy(grid, grid)) > 1, False]
    edges = np.flatnonzero(np.diff(on.astype(int)))
    return [
        (float(grid[first]), float(grid[last - 1]))
        for first, last in zip(edges[::2], edges[1::2], strict=True)
    ]


def _temperature_error(
    policy: Polynomial, entropies: np.ndarray, inverse_temperatures: np.ndarray
) -> float:
    """Return the root mean squared difference between the policy's and the best temperatures."""
    values = np.asarray(policy(entropies, entropies))
    best = np.maximum(inverse_temperatures, SMALLEST)
    return float(np.sqrt(np.mean((1 / values - 1 / best) ** 2)))
