"""Sets of items to be asked about: what the paper's central experiment trains and tests on.

An item has a priority and one of ten classes; the answer is a class. Section 2 of arXiv 2410.01104
asks for the class of the item of highest priority. A set also has a random query, which says
nothing: the head must find the maximum whatever it is asked with.
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
"""Share of the items of a set that take its favoured class, in the task of the most frequent one.

With the tenth of the others that fall on it this makes 28 % against 8 %: a handful of items often
misleads, thirty rarely do."""


class Sets(NamedTuple):
    """Sets of up to `items` items and the right answers."""

    priority: Float[Array, "sets items"]
    label: Int[Array, "sets items"]
    present: Bool[Array, "sets items"]
    """Smaller sets are padded; True where there is an item."""
    query: Float[Array, " sets"]
    answer: Int[Array, " sets"]


def of_highest_priority(key: Array, priority: Array, present: Array) -> tuple[Array, Array]:
    """Classes uniform among ten; the answer is that of the item of highest priority."""
    label = jax.random.randint(key, priority.shape, 0, CLASSES, jnp.int32)
    return label, _taken(label, highest(priority, present))


def of_second_priority(key: Array, priority: Array, present: Array) -> tuple[Array, Array]:
    """Classes uniform among ten; the answer is that of the item of second highest priority."""
    label = jax.random.randint(key, priority.shape, 0, CLASSES, jnp.int32)
    first = highest(priority, present)[:, None]
    others = present & (jnp.arange(priority.shape[1]) != first)
    return label, _taken(label, highest(priority, others))


def most_frequent(key: Array, priority: Array, present: Array) -> tuple[Array, Array]:
    """The class that most items have, whatever their priorities: a task for averaging.

    Each set favours one class. A draw between classes is decided by giving one more item to one of
    them, so that every set has a right answer.
    """
    uniform, favourite, coin, lots = jax.random.split(key, 4)
    label = jax.random.randint(uniform, priority.shape, 0, CLASSES, jnp.int32)
    favoured = jax.random.randint(favourite, (len(priority), 1), 0, CLASSES, jnp.int32)
    gives_in = jax.random.uniform(coin, priority.shape, jnp.float32) < FAVOURED
    label = jnp.where(gives_in, favoured, label)

    belongs = label[..., None] == jnp.arange(CLASSES, dtype=jnp.int32)
    counts = jnp.sum(belongs & present[..., None], axis=1)
    leads = counts == jnp.max(counts, axis=1, keepdims=True)
    ticket = jax.random.uniform(lots, counts.shape, jnp.float32)
    winner = jnp.argmax(jnp.where(leads, ticket, -1.0), axis=1).astype(jnp.int32)
    loser = jnp.argmax(present & (label != winner[:, None]), axis=1)
    drawn = jnp.sum(leads, axis=1) > 1
    given = drawn[:, None] & (jnp.arange(label.shape[1]) == loser[:, None])
    return jnp.where(given, winner[:, None], label), winner


TASKS: dict[str, Callable[[Array, Array, Array], tuple[Array, Array]]] = {
    "max": of_highest_priority,
    "second-max": of_second_priority,
    "most-frequent": most_frequent,
}
"""From a random key, the priorities and the padding to the classes and the answer."""


def draw(
    task: str, key: Array, sets: int, smallest: int, largest: int, narrowest: float = 1.0
) -> Sets:
    """Random sets, each of its own size, uniform from `smallest` to `largest`.

    Priorities are uniform in [0, 1]. With `narrowest` below 1 they are uniform in [1 - width, 1], a
    width for each set, uniform in its logarithm from `narrowest` to 1: a few items as near to each
    other as the highest of many are.
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


def highest(values: Array, present: Array) -> Int[Array, " sets"]:
    """The place of each set's largest value; of equal ones, the first."""
    return jnp.argmax(jnp.where(present, values, -jnp.inf), axis=1)


def features(sets: Sets) -> Float[Array, "sets items 11"]:
    """An item as the model sees it: its priority and its class, one-hot."""
    dtype: Any = sets.priority.dtype
    one_hot = jax.nn.one_hot(sets.label, CLASSES, dtype=dtype)
    return jnp.concatenate([sets.priority[..., None], one_hot], axis=-1)


def _taken(values: Array, place: Array) -> Array:
    return jnp.take_along_axis(values, place[:, None], axis=1)[:, 0]
