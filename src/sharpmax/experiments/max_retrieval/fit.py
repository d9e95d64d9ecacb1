"""Figure 6: how the paper's polynomial comes about, and ours.

For each set there is an inverse temperature b at which the true maximum has most weight. The weight
p = exp(b e) / sum_j exp(b e_j) of the item with logit e changes with b as

    d log p / d b = e - E_b[e],

and E_b[e], the mean logit under softmax(b e), rises with b: so the best b is where E_b[e] = e, one
root. It is infinite where the maximum has the largest logit, there the colder the better, and zero
where its logit is below the average. The finite ones against the set's entropy are the cloud
through which a polynomial of degree four is laid: once through the inverse temperatures, which the
largest decide, once so that 1 / polynomial goes through the temperatures, which they do not.
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

from sharpmax.experiments import jobs
from sharpmax.experiments.max_retrieval import data, heads, paper
from sharpmax.experiments.max_retrieval.model import look
from sharpmax.experiments.max_retrieval.sweep import Progress, about
from sharpmax.ops import entropy
from sharpmax.policies import PAPER, Polynomial, fit_polynomial
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float

FITTING = 2_000_000
"""Added to a seed: sets of their own, neither trained nor examined on."""

MOST_NATS = 10.0
"""Where a policy's reach is looked for: more than 16,384 items can have."""

SMALLEST = 0.5
"""Inverse temperatures below count as this: adaptive temperature never goes below 1, and the
temperature of one near 0 would decide a whole fit."""

FIRST_CUT = 5.0


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = paper.SIZES
    sets: int = 64
    """Of every size, for every head."""
    degree: int = 4
    seeds: tuple[int, ...] | None = None
    """Of the heads; None for all that come with the package."""


class Cloud(NamedTuple):
    """Sets of one head, one point each."""

    size: np.ndarray
    entropy: np.ndarray
    best: np.ndarray
    """The inverse temperature at which the maximum has most weight; infinite where it leads."""


def best_inverse_temperature(logits: Float[np.ndarray, " items"], place: int) -> float:
    """At which the item at `place` has most weight among all temperatures."""
    offsets = np.asarray(logits, np.float64) - np.max(logits)
    own = offsets[place]
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


class Job(NamedTuple):
    weights: dict[str, np.ndarray]
    scaled: bool
    seed: int
    config: Config


def cloud(job: Job, tell: jobs.Tell = lambda share: None) -> Cloud:
    """The points of one head."""
    weights = {name: jnp.asarray(array) for name, array in job.weights.items()}
    rows: list[tuple[int, float, float]] = []
    for size in job.config.sizes:
        key = jax.random.fold_in(jax.random.key(FITTING + job.seed), size)
        for number in range(job.config.sets):
            logits, spread, place = jax.device_get(
                _logits(weights, jax.random.fold_in(key, number), size, job.scaled)
            )
            rows.append((size, float(spread), best_inverse_temperature(logits, int(place))))
        tell(len(rows) / (job.config.sets * len(job.config.sizes)))
    return Cloud(*(np.asarray(column) for column in zip(*rows, strict=True)))


@partial(jax.jit, static_argnames=("size", "scaled"))
def _logits(weights: Any, key: Any, size: int, scaled: bool) -> tuple[Any, Any, Any]:
    sets = data.draw("max", key, 1, size, size)
    (logits,) = look(weights, sets, scaled=scaled).logits
    return logits[0], entropy(logits)[0], data.highest(sets.priority, sets.present)[0]


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    watch = Stopwatch()
    trained = heads.load("max").only(config.seeds)
    wanted = [
        Job(trained.of(seed), trained.training.scaled, seed, config) for seed in trained.seeds
    ]
    told = about("fitting", wanted, progress)
    clouds = jobs.run(cloud, wanted, processes=processes, progress=told)
    size, spread, best = (np.concatenate([one[part] for one in clouds]) for part in range(3))
    usable = np.isfinite(best) & (best > 0)
    fits = fitted_to(spread[usable], best[usable], config.degree)
    measurements = {
        "points": len(best),
        "leading": {str(n): float(np.isinf(best[size == n]).mean()) for n in config.sizes},
        "below_average": float((best == 0).mean()),
        "coefficients": {name: policy.coefficients for name, policy in fits.items()},
        "threshold": PAPER.threshold,
        "sharpens": {name: reach(policy) for name, policy in fits.items()},
        "entropies": [float(spread[usable].min()), float(spread[usable].max())],
        "temperature_error": {
            name: _temperature_error(policy, spread[usable], best[usable])
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
    ).with_arrays(size=size, entropy=spread, best=np.where(np.isinf(best), np.nan, best))


def fitted_to(
    entropies: Float[np.ndarray, " points"],
    inverse_temperatures: Float[np.ndarray, " points"],
    degree: int = 4,
) -> dict[str, Polynomial]:
    """The polynomials through the points, and the paper's."""
    plain = fit_polynomial(entropies, inverse_temperatures, degree)
    # Sets that ask for an inverse temperature of a hundred ask for a temperature of nearly zero:
    # cut, they give a first guess.
    first = fit_polynomial(entropies, np.minimum(inverse_temperatures, FIRST_CUT), degree)

    def residual(coefficients: np.ndarray) -> np.ndarray:
        values = np.maximum(np.polyval(coefficients, entropies), SMALLEST)
        return 1 / values - 1 / np.maximum(inverse_temperatures, SMALLEST)

    found = least_squares(residual, first.coefficients, x_scale="jac")
    return {
        "temperature": Polynomial(tuple(found.x.tolist())),
        "inverse temperature": plain,
        "paper": PAPER,
    }


def reach(policy: Polynomial) -> list[tuple[float, float]]:
    """The ranges of entropies in which a policy sharpens at all, in nats."""
    grid = np.linspace(0, MOST_NATS, 10_001)
    on = np.r_[False, np.asarray(policy(grid, grid)) > 1, False]
    edges = np.flatnonzero(np.diff(on.astype(int)))
    return [
        (float(grid[first]), float(grid[last - 1]))
        for first, last in zip(edges[::2], edges[1::2], strict=True)
    ]


def _temperature_error(
    policy: Polynomial, entropies: np.ndarray, inverse_temperatures: np.ndarray
) -> float:
    """The root of the mean squared difference of temperatures."""
    values = np.asarray(policy(entropies, entropies))
    wanted = np.maximum(inverse_temperatures, SMALLEST)
    return float(np.sqrt(np.mean((1 / values - 1 / wanted) ** 2)))
