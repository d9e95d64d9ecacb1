"""Random sets of items and the right answer for each: the data of max retrieval.

An item has a priority and one of ten classes; the answer is a class. Section 2 of arXiv 2410.01104
asks for the class of the item of highest priority. A set also has a random query that carries no
information: the head must find the maximum whatever the query is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CLASSES = 10
FEATURES = 1 + CLASSES

FAVOURED = 0.2
"""Share of a set's items that take its favoured class, in the task `most-frequent`.

Together with the other items that fall on it by chance, the favoured class has 28 % of the items
and every other class 8 %: a handful of items often misleads, thirty rarely do."""


class Sets(NamedTuple):
    """A batch of sets, padded to `items` items, with the right answers."""

    priority: Float[Array, "sets items"]
    label: Int[Array, "sets items"]
    """The class of each item."""
    present: Bool[Array, "sets items"]
    """True where there is an item, False where there is padding."""
    query: Float[Array, " sets"]
    answer: Int[Array, " sets"]


def label_max(
    key: Array, priority: Float[Array, "sets items"], present: Bool[Array, "sets items"]
) -> tuple[Array, Array]:
    """Draw uniform classes; the answer is the class of the item of highest priority."""
    label = jax.random.randint(key, priority.shape, 0, CLASSES, jnp.int32)
    return label, _take(label, argmax_present(priority, present))


def label_second_max(
    key: Array, priority: Float[Array, "sets items"], present: Bool[Array, "sets items"]
) -> tuple[Array, Array]:
    """Draw uniform classes; the answer is the class of the item of second highest priority."""
    label = jax.random.randint(key, priority.shape, 0, CLASSES, jnp.int32)
    first = argmax_present(priority, present)[:, None]
    others = present & (jnp.arange(priority.shape[1]) != first)
    return label, _take(label, argmax_present(priority, others))


def label_most_frequent(
    key: Array, priority: Float[Array, "sets items"], present: Bool[Array, "sets items"]
) -> tuple[Array, Array]:
    """Draw classes of which one is favoured; the answer is the most frequent class.

    Priorities do not matter, so this task needs an average over all items. A tie between classes is
    broken by moving one item to one of them, so that every set has exactly one right answer.
    """
    uniform, favourite, coin, lots = jax.random.split(key, 4)
    label = jax.random.randint(uniform, priority.shape, 0, CLASSES, jnp.int32)
    favoured = jax.random.randint(favourite, (len(priority), 1), 0, CLASSES, jnp.int32)
    takes_favoured = jax.random.uniform(coin, priority.shape, jnp.float32) < FAVOURED
    label = jnp.where(takes_favoured, favoured, label)

    belongs = label[..., None] == jnp.arange(CLASSES, dtype=jnp.int32)
    counts = jnp.sum(belongs & present[..., None], axis=1)
    leads = counts == jnp.max(counts, axis=1, keepdims=True)
    ticket = jax.random.uniform(lots, counts.shape, jnp.float32)
    winner = jnp.argmax(jnp.where(leads, ticket, -1.0), axis=1).astype(jnp.int32)
    loser = jnp.argmax(present & (label != winner[:, None]), axis=1)
    tied = jnp.sum(leads, axis=1) > 1
    moved = tied[:, None] & (jnp.arange(label.shape[1]) == loser[:, None])
    return jnp.where(moved, winner[:, None], label), winner


TASKS: dict[str, Callable[[Array, Array, Array], tuple[Array, Array]]] = {
    "max": label_max,
    "second-max": label_second_max,
    "most-frequent": label_most_frequent,
}
"""Functions from a random key, the priorities and the padding to the classes and the answers."""


def draw(
    task: str, key: Array, sets: int, smallest: int, largest: int, narrowest: float = 1.0
) -> Sets:
    """Draw random sets, each with a random size from `smallest` to `largest`.

    Priorities are uniform in [0, 1]. With `narrowest` below 1 they are uniform in [1 - width, 1],
    where every set has its own width, uniform in its logarithm from `narrowest` to 1. A few items
    are then as close to each other as the highest of many items are.
    """
    ranks, classes, queries, sizes = jax.random.split(key, 4)
    size = jax.random.randint(sizes, (sets, 1), smallest, largest + 1, jnp.int32)
    present = jnp.arange(largest, dtype=jnp.int32) < size
    priority = jax.random.uniform(ranks, (sets, largest), jnp.float32)
    if narrowest < 1:
        narrowing = jax.random.uniform(jax.random.fold_in(ranks, 1), (sets, 1), jnp.float32)
        priority = 1 - narrowest**narrowing * (1 - priority)
    label, answer = TASKS[task](classes, priority, present)
    return Sets(priority, label, present, jax.random.uniform(queries, (sets,), jnp.float32), answer)


def argmax_present(
    values: Float[Array, "sets items"], present: Bool[Array, "sets items"]
) -> Int[Array, " sets"]:
    """Return the index of each set's largest value; among equal values the first."""
    return jnp.argmax(jnp.where(present, values, -jnp.inf), axis=1)


def features(sets: Sets) -> Float[Array, "sets items 11"]:
    """Return the model's inputs: the priority of each item and its class, one-hot."""
    dtype: Any = sets.priority.dtype
    one_hot = jax.nn.one_hot(sets.label, CLASSES, dtype=dtype)
    return jnp.concatenate([sets.priority[..., None], one_hot], axis=-1)


def _take(values: Array, index: Array) -> Array:
    return jnp.take_along_axis(values, index[:, None], axis=1)[:, 0]
