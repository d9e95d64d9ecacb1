"""Figures 2 and 7: where the head looks as the set grows.

Rows are random sets, columns the items of highest priority with the maximum at the right, and each
frame doubles the size of the set. The colour is the weight of an item. Weight that falls outside
the columns is on items that a head for the maximum should not look at.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax.experiments.max_retrieval import data, heads, paper
from sharpmax.experiments.max_retrieval.evaluation import EVALUATION_SEED
from sharpmax.experiments.max_retrieval.model import Weights, encode
from sharpmax.experiments.max_retrieval.table1 import METHODS
from sharpmax.results import Result, Stopwatch

__all__ = ["Config", "run"]


@dataclass(frozen=True)
class Config:
    """Settings of Figures 2 and 7."""

    methods: tuple[str, ...] = ("baseline",)
    """Methods of Table 1; Figure 7 shows adaptive temperature too."""
    seed: int = 0
    """Seed of the head and of its sets."""
    sizes: tuple[int, ...] = paper.SIZES
    """Numbers of items, one frame each."""
    sets: int = 32
    """Rows of a frame."""
    items: int = 16
    """Columns of a frame."""


def run(config: Config = Config()) -> Result:  # noqa: B008 - frozen, so sharing the default is safe
    """Compute the weights that a trained head gives to the items of highest priority.

    Args:
        config: Methods, head, sizes and sets.

    Returns:
        A result of kind `figure2`, or `figure7` with more than the baseline.

    Raises:
        UserError: If the trained heads are not available.
    """
    watch = Stopwatch()
    trained = heads.load("max")
    weights = {name: jnp.asarray(array) for name, array in trained.of(config.seed).items()}
    frames: dict[str, list[np.ndarray]] = {name: [] for name in config.methods}
    for size in config.sizes:
        key = jax.random.fold_in(jax.random.key(EVALUATION_SEED + config.seed), size)
        maps = _maps(weights, key, size, trained.training.scaled, config)
        for name, frame in maps.items():
            frames[name].append(np.asarray(frame))
    measurements = {
        "sizes": list(config.sizes),
        "weights": {name: np.stack(rows) for name, rows in frames.items()},  # [size, set, item]
        "weight_of_maximum": {
            name: [rows[:, -1].mean() for rows in shown] for name, shown in frames.items()
        },
        "heads_sha256": trained.sha256,
    }
    return Result(
        kind="figure2" if config.methods == ("baseline",) else "figure7",
        config=asdict(config),
        seeds=(config.seed,),
        measurements=measurements,
        provenance=watch.provenance(),
    )


@partial(jax.jit, static_argnames=("size", "scaled", "config"))
def _maps(
    weights: Weights, key: Array, size: int, scaled: bool, config: Config
) -> dict[str, Array]:
    """Return the weights of the items of highest priority by method, each [sets, items]."""
    sets = data.draw("max", key, config.sets, size, size)
    (logits,) = encode(weights, sets, scaled=scaled).logits
    shown = jnp.argsort(sets.priority, axis=1)[:, -config.items :]
    attention = {name: METHODS[name](logits, where=sets.present) for name in config.methods}
    return {name: jnp.take_along_axis(rows, shown, axis=1) for name, rows in attention.items()}
