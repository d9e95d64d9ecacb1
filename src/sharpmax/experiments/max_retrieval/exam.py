"""Examining a trained head: on sets of any size, under any way of giving weights, at once.

Every method is asked about the same sets, of which the items' hidden vectors are computed once. A
few sets at a time, so that 16,384 items cost time and not memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax.experiments.jobs import Tell
from sharpmax.experiments.max_retrieval import data
from sharpmax.experiments.max_retrieval.model import (
    AS_IN_THE_PAPER,
    WIDTH,
    Design,
    Normaliser,
    Weights,
    answer,
    bound,
    look,
)
from sharpmax.ops import entropy, inverse_temperature_for_entropy, softmax

ITEMS_AT_ONCE = 4_096
"""2 MB of hidden vectors, near the processor; a larger set is taken alone."""

PIECE = 1_024
"""Items of a set that are looked at together."""

TINY = float(np.finfo(np.float32).tiny)
"""Divides the weights of a set that was given none."""

EXAMINING = 1_000_000
"""Added to a seed: what a head is examined on is drawn apart from what it was trained on."""


@dataclass(frozen=True)
class EntropyTarget:
    """Sharpen each set until its entropy is at most `nats`, such as it was in training."""

    nats: float
    most: float = 1e4
    """Where logits are nearly equal no temperature is low enough; this is where it ends."""

    def __call__(self, logits: Array, *, where: Array) -> Array:
        scale = inverse_temperature_for_entropy(logits, self.nats, where=where)
        # From the top first: a large scale would magnify the rounding of large logits.
        offsets = logits - jnp.max(jnp.where(where, logits, -jnp.inf), axis=1, keepdims=True)
        return softmax(offsets * jnp.minimum(scale, self.most)[:, None], where=where)


class Exam(NamedTuple):
    """One head, the sets that it is asked about, and the methods that are compared on them."""

    weights: Mapping[str, np.ndarray]
    scaled: bool
    task: str
    seed: int
    sizes: tuple[int, ...]
    sets: int
    methods: Mapping[str, Normaliser]
    """By name; picklable, since heads are examined in processes of their own, and equal to others
    that do the same, so that they are compiled once."""
    design: Design = AS_IN_THE_PAPER
    """How the head was trained. One with fields of its own is asked with its own normaliser."""


class Marks(NamedTuple):
    """What an exam finds, set by set; the first axis of each is the size."""

    right: dict[str, np.ndarray]
    """Whether each method's answer is right."""
    weight: dict[str, np.ndarray]
    """The weight that each method gives to the item of highest priority."""
    sharpness: dict[str, np.ndarray]
    """The largest weight as a share of all, each without its sign."""
    entropy: np.ndarray
    """Of plain softmax."""
    ranked: np.ndarray
    """Whether the item of largest logit has the right class."""
    found: np.ndarray
    """Whether it is the very item of highest priority."""


def examine(exam: Exam, tell: Tell = lambda share: None) -> Marks:
    """Ask the head about `sets` sets of every size."""
    weights = {name: jnp.asarray(array) for name, array in exam.weights.items()}
    methods = tuple(exam.methods.values())
    total = exam.sets * sum(exam.sizes)
    done, pages = 0, []
    for size in exam.sizes:
        key = jax.random.fold_in(jax.random.key(EXAMINING + exam.seed), size)
        rows: list[Any] = []
        for place, count in enumerate(portions(exam.sets, size)):
            sets = _draw(exam.task, jax.random.fold_in(key, place), count, size)
            found = _mark(weights, sets, methods, exam.scaled, exam.design)
            rows.append(jax.device_get(found))
            done += count * size
            tell(done / total)
        pages.append(jax.tree.map(lambda *parts: np.concatenate(parts, axis=-1), *rows))
    found = jax.tree.map(lambda *sizes: np.stack(sizes), *pages)
    by_name = {name: place for place, name in enumerate(exam.methods)}
    return Marks(
        {name: found["right"][:, place] for name, place in by_name.items()},
        {name: found["weight"][:, place] for name, place in by_name.items()},
        {name: found["sharpness"][:, place] for name, place in by_name.items()},
        found["entropy"],
        found["ranked"],
        found["found"],
    )


def portions(sets: int, size: int) -> Sequence[int]:
    """How many sets of this size to take at a time: equal shares but for the last."""
    share = max(1, min(sets, ITEMS_AT_ONCE // size))
    whole, rest = divmod(sets, share)
    return [share] * whole + [rest] * (rest > 0)


@partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(task: str, key: Array, sets: int, size: int) -> data.Sets:
    return data.draw(task, key, sets, size, size)


@partial(jax.jit, static_argnames=("methods", "scaled", "design"))
def _mark(
    weights: Weights,
    sets: data.Sets,
    methods: tuple[Normaliser, ...],
    scaled: bool,
    design: Design,
) -> dict[str, Array]:
    sets, pieces = _in_pieces(sets)
    seen = look(weights, pieces, design, scaled=scaled)
    rows = [logits.reshape(sets.priority.shape) for logits in seen.logits]
    asked = [bound(weights, replace(design, normaliser=method)) for method in methods]
    given = jnp.stack([method(*rows, where=sets.present) for method in asked])
    by_piece = given.reshape(len(methods), *pieces.priority.shape)
    pooled = jnp.einsum("mpi,pih->mph", by_piece, seen.hidden)
    pooled = jnp.sum(pooled.reshape(len(methods), len(sets.query), -1, WIDTH), axis=2)
    logits, size = rows[0], jnp.abs(given)
    said = jnp.argmax(answer(weights, pooled, jnp.sum(given, axis=-1), design), axis=-1)
    best, top = (data.highest(values, sets.present) for values in (sets.priority, logits))
    return {
        "right": said.astype(sets.answer.dtype) == sets.answer,
        "weight": jnp.take_along_axis(given, best[None, :, None], axis=2)[..., 0],
        "sharpness": jnp.max(size, axis=2) / jnp.maximum(jnp.sum(size, axis=2), TINY),
        "entropy": entropy(logits, where=sets.present),
        "ranked": jnp.take_along_axis(sets.label, top[:, None], axis=1)[:, 0] == sets.answer,
        "found": top == best,
    }


def _in_pieces(sets: data.Sets) -> tuple[data.Sets, data.Sets]:
    """The sets, padded to whole pieces, and every piece as a set of its own.

    A head looks at each item by itself, so pieces show it the same; products over few items stay in
    the processor's cache, and are five times faster at 16,384.
    """
    items = sets.priority.shape[1]
    pieces = -(-items // PIECE)
    piece = min(items, PIECE)
    missing = ((0, 0), (0, pieces * piece - items))
    whole = sets._replace(
        priority=jnp.pad(sets.priority, missing),
        label=jnp.pad(sets.label, missing),
        present=jnp.pad(sets.present, missing),
    )
    parts = data.Sets(
        whole.priority.reshape(-1, piece),
        whole.label.reshape(-1, piece),
        whole.present.reshape(-1, piece),
        jnp.repeat(sets.query, pieces),
        jnp.repeat(sets.answer, pieces),
    )
    return whole, parts
