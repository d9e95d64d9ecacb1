"""The corollary of Theorem 2.2: from some number of items on the answer cannot be the maximum's.

"Dispersion induces reasoning failures" says that a softmax head that names the class of a set's
highest item must err beyond some size. Two sets that differ in that item alone have different right
answers, but the outputs of the head differ less and less, until the machine no longer sees it.

For each trained head this computes the size from which on that is certain, in several floating
types, and measures when it happens: the highest item of random sets is given every class in turn,
while the other items stay. Sets are drawn in chunks and never held whole.

The spread of a head's logits over all items is so large that Lemma 2.1 alone says nothing about any
size that could exist. But the rivals of the highest item are those that are nearly as high, and of
n items with uniform priorities about n t have a priority in [1 - t, 1]. The lemma is applied to
them, for the share t that gives the smallest size; the other items only take more weight away.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax import theory
from sharpmax.experiments.jobs import Progress, ReportShare, label_progress, run_jobs
from sharpmax.experiments.max_retrieval import data, heads
from sharpmax.experiments.max_retrieval.evaluation import EVALUATION_SEED
from sharpmax.experiments.max_retrieval.model import WIDTH, Weights, classify, encode
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Config", "run"]

CHUNK = 8_192
"""Items that are drawn and encoded at a time: 4 MB of hidden vectors."""

DEVIATIONS = 5
"""Of n items fewer than n t - 5 sqrt(n t) are among the highest share t about once in 3 million."""

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Machine epsilon: the distance from 1 to the next larger number of the type."""


@dataclass(frozen=True)
class Config:
    """Settings of the corollary."""

    sizes: tuple[int, ...] = tuple(4**power for power in range(2, 11))
    """Numbers of items, up to 1,048,576; a size above 8,192 must be a multiple of that."""
    sets: int = 16
    """Random sets per size and head."""
    shares: tuple[float, ...] = tuple(2.0**-power for power in range(17))
    """Shares t of items among which the highest has its rivals."""
    priorities: int = 201
    """Priorities in [1 - t, 1] at which logits are computed to find their extremes."""
    queries: int = 33
    """Queries in [0, 1] for the same."""
    seeds: tuple[int, ...] | None = None
    """Seeds of the heads; None for all."""


class Job(NamedTuple):
    """One trained head."""

    weights: dict[str, np.ndarray]
    scaled: bool
    seed: int
    config: Config


class Rest(NamedTuple):
    """A random set without its highest item, summed up relative to its largest logit."""

    query: Array
    priority: Array
    """That of the highest item."""
    label: Array
    """That of the highest item."""
    largest: Array
    """The largest logit of the rest."""
    total: Array
    """The sum of exp(logit - largest)."""
    pooled: Array
    """The sum of the hidden vectors, weighted likewise."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Compute and measure from which size on the answer ignores the highest item.

    Args:
        config: Sizes, sets and heads.
        processes: How many heads are measured at once; None for one per core.
        progress: Called with what is finished of each head.

    Returns:
        A result of kind `corollary`; its lists have one entry per head, and one per size within.

    Raises:
        UserError: If the trained heads are not available.
    """
    watch = Stopwatch()
    trained = heads.load("max").only(config.seeds)
    jobs = [Job(trained.of(seed), trained.training.scaled, seed, config) for seed in trained.seeds]
    report = label_progress("measuring", len(jobs), progress)
    found = run_jobs(measure_head, jobs, processes=processes, progress=report)
    return Result(
        kind="corollary",
        config=asdict(config),
        seeds=trained.seeds,
        measurements={
            "sizes": list(config.sizes),
            "types": list(EPSILON),
            "heads_sha256": trained.sha256,
            **{name: [head[name] for head in found] for name in found[0]},
        },
        provenance=watch.provenance(),
    )


def measure_head(job: Job, report_share: ReportShare = lambda share: None) -> dict[str, Any]:
    """Return the measurements of one head."""
    weights = {name: jnp.asarray(array) for name, array in job.weights.items()}
    spreads, diameter = find_extremes(weights, job.scaled, job.config)
    rows: list[dict[str, Any]] = []
    todo, done = sum(job.config.sizes), 0
    for size in job.config.sizes:
        key = jax.random.fold_in(jax.random.key(EVALUATION_SEED + job.seed), size)
        keys = jax.random.split(key, job.config.sets)
        rest = jax.device_get(draw_sets(weights, keys, size, job.scaled))
        rows.append(_exchange(weights, rest, job.scaled))
        done += size
        report_share(done / todo)
    norm = rows[-1]["norm"]
    shares = np.array(job.config.shares)
    bounds = [bound_change(size, shares, spreads, diameter) for size in job.config.sizes]
    return {
        "spreads": spreads.tolist(),
        "diameter": diameter,
        "norm": norm,
        "ignored_from": [
            items_until_ignored(shares, spreads, diameter, epsilon * norm)
            for epsilon in EPSILON.values()
        ],
        "largest_change_bound": [bound / norm for bound in bounds],
        **{name: [row[name] for row in rows] for name in rows[0] if name != "norm"},
    }


def items_until_ignored(
    shares: Float[np.ndarray, " shares"],
    spreads: Float[np.ndarray, " shares"],
    diameter: float,
    resolution: float,
) -> float:
    """Return from how many random items on no exchange of the highest is seen, for the best share.

    With k = `theory.items_until_ignored` rivals needed, it is the n at which n t - 5 sqrt(n t) = k.
    """
    needed = np.asarray(theory.items_until_ignored(spreads, diameter, resolution))
    root = (DEVIATIONS + np.sqrt(DEVIATIONS**2 + 4 * needed)) / 2
    return float(np.ceil((root**2 / shares).min()))


def bound_change(
    size: int,
    shares: Float[np.ndarray, " shares"],
    spreads: Float[np.ndarray, " shares"],
    diameter: float,
) -> float:
    """Return the most by which an exchange of the highest of `size` items changes the output."""
    expected = size * shares
    rivals = np.maximum(np.floor(expected - DEVIATIONS * np.sqrt(expected)), 1)
    rivals[shares == 1] = size
    return float(np.min(theory.weight_bounds(rivals, spreads)[1])) * diameter


def find_extremes(
    weights: Weights, scaled: bool, config: Config
) -> tuple[Float[np.ndarray, " shares"], float]:
    """Return the largest spread of logits among each share of items, and the values' diameter.

    Over all queries and classes, on a grid.
    """
    spreads = np.zeros(len(config.shares))
    for query in _grid(0.0, config.queries):
        for place, share in enumerate(config.shares):
            items = _all_items(_grid(1 - share, config.priorities), query)
            (logits,) = encode(weights, items, scaled=scaled).logits
            spreads[place] = max(spreads[place], float(jnp.ptp(logits)))
    coarse = _all_items(_grid(0.0, 101), jnp.zeros((), jnp.float32))
    hidden = np.asarray(encode(weights, coarse, scaled=scaled).hidden[0], np.float64)
    values = _values(weights, hidden)
    squares = (values**2).sum(1)
    distances = squares[:, None] + squares - 2 * values @ values.T
    return spreads, math.sqrt(float(distances.max()))


def _grid(first: float, count: int) -> Array:
    """Return numbers from `first` to 1."""
    return jnp.linspace(first, 1.0, count, dtype=jnp.float32)


def _all_items(priorities: Array, query: Array) -> data.Sets:
    """Return one set with an item of every class at every priority."""
    priority = jnp.repeat(priorities, data.CLASSES)[None]
    label = jnp.tile(jnp.arange(data.CLASSES, dtype=jnp.int32), len(priorities))[None]
    return _one_set(priority, label, query)


def _one_set(priority: Array, label: Array, query: Array) -> data.Sets:
    present = jnp.ones(priority.shape, bool)
    return data.Sets(priority, label, present, query[None], jnp.zeros(1, jnp.int32))


@partial(jax.jit, static_argnames=("size", "scaled"))
def draw_sets(weights: Weights, keys: Array, size: int, scaled: bool) -> Rest:
    """Draw a set of `size` items for each key, and sum up all but its highest item.

    The items are drawn twice, in chunks: first to find the highest, then to sum up the others.
    """
    chunk = min(size, CHUNK)
    if size % chunk:
        raise ValueError(f"size {size} is not a multiple of {chunk}")
    chunks = jnp.arange(size // chunk, dtype=jnp.int32)
    places = jnp.arange(chunk, dtype=jnp.int32)

    def draw_chunk(key: Array, number: Array) -> tuple[Array, Array]:
        ranks, classes = jax.random.split(jax.random.fold_in(key, number))
        priority = jax.random.uniform(ranks, (1, chunk), jnp.float32)
        return priority, jax.random.randint(classes, (1, chunk), 0, data.CLASSES, jnp.int32)

    def draw_set(key: Array) -> Rest:
        query = jax.random.uniform(jax.random.fold_in(key, len(chunks)), (), jnp.float32)

        def find(best: Any, number: Array) -> tuple[Any, None]:
            priority, label = (row[0] for row in draw_chunk(key, number))
            place = jnp.argmax(priority).astype(jnp.int32)
            ours = (priority[place], label[place], number, place)
            return jax.tree.map(partial(jnp.where, ours[0] > best[0]), ours, best), None

        start = (jnp.float32(-1), jnp.int32(0), jnp.int32(0), jnp.int32(0))
        (priority, label, where, place), _ = jax.lax.scan(find, start, chunks)

        def add(sums: Any, number: Array) -> tuple[Any, None]:
            items = _one_set(*draw_chunk(key, number), query)
            encoded = encode(weights, items, scaled=scaled)
            highest = (number == where) & (places == place)
            logits = jnp.where(highest, -jnp.inf, encoded.logits[0][0])
            largest, total, pooled = sums
            top = jnp.maximum(largest, jnp.max(logits))
            shrink, parts = jnp.exp(largest - top), jnp.exp(logits - top)
            return (
                top,
                shrink * total + jnp.sum(parts),
                shrink * pooled + parts @ encoded.hidden[0],
            ), None

        nothing = (jnp.float32(-jnp.inf), jnp.float32(0), jnp.zeros(WIDTH, jnp.float32))
        sums, _ = jax.lax.scan(add, nothing, chunks)
        return Rest(query, priority, label, *sums)

    rest: Rest = jax.lax.map(draw_set, keys)
    return rest


def _exchange(weights: Weights, rest: Rest, scaled: bool) -> dict[str, Any]:
    """Give the highest item of each set every class, and compare outputs and answers."""
    sets, classes = len(rest.query), data.CLASSES
    every = jnp.tile(jnp.arange(classes, dtype=jnp.int32), (sets, 1))
    items = data.Sets(
        jnp.repeat(jnp.asarray(rest.priority)[:, None], classes, 1),
        every,
        jnp.ones((sets, classes), bool),
        jnp.asarray(rest.query),
        jnp.zeros(sets, jnp.int32),
    )
    encoded = encode(weights, items, scaled=scaled)
    logits = np.asarray(encoded.logits[0], np.float64)  # [set, class]
    hidden = np.asarray(encoded.hidden, np.float64)
    top = np.maximum(logits, rest.largest[:, None])
    mine, others = np.exp(logits - top), np.exp(rest.largest[:, None] - top)
    total = mine + others * rest.total[:, None].astype(np.float64)
    pooled = others[..., None] * rest.pooled[:, None].astype(np.float64) + mine[..., None] * hidden
    pooled /= total[..., None]
    outputs = _values(weights, pooled)
    whole = jnp.ones(total.shape, jnp.float32)
    answers = np.asarray(jnp.argmax(classify(weights, jnp.asarray(pooled, jnp.float32), whole), -1))
    norms = np.linalg.norm(outputs, axis=-1)
    changes = _largest_changes(outputs) / norms.min(1)
    own = np.arange(sets), rest.label
    return {
        "accuracy": float((answers[own] == rest.label).mean()),
        "follows": float((answers == np.arange(classes)).all(1).mean()),
        "depends": float((answers != answers[:, :1]).any(1).mean()),
        "weight": float((mine / total)[own].mean()),
        "largest_change": float(changes.max()),
        "unseen": [float((changes < epsilon).mean()) for epsilon in EPSILON.values()],
        "norm": float(norms.min()),
    }


def _values(weights: Weights, hidden: Float[np.ndarray, "*b width"]) -> np.ndarray:
    """Return what the answer network sees of hidden vectors with a total weight of 1."""
    item2, bias, value = (
        np.asarray(weights[name], np.float64) for name in ("item2", "item2_bias", "value")
    )
    return (hidden @ item2 + bias) @ value


def _largest_changes(
    outputs: Float[np.ndarray, "sets classes width"],
) -> Float[np.ndarray, " sets"]:
    """Return the largest distance between two outputs of each set."""
    differences = outputs[:, :, None] - outputs[:, None]
    return np.linalg.norm(differences, axis=-1).max((1, 2))
