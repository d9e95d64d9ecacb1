"""A trained head of the paper's max retrieval on sets of 16,384 items, quickly enough for a slider.

What a head sees of an item is a function of one number, its priority, for each of ten classes. So
that function is computed once, at the nodes of a fine grid, and looked up between them: an item
costs a few additions and no layer. The error is that of linear interpolation, far below what a
weight shows; the tests hold it against `sharpmax.experiments.max_retrieval.model`, item by item.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sharpmax.experiments.max_retrieval import heads
from sharpmax.experiments.max_retrieval.data import CLASSES
from sharpmax.experiments.max_retrieval.model import WIDTH
from sharpmax.ops import entropy, softmax
from sharpmax.policies import Policy, inverse_temperatures

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Rows = Float[np.ndarray, "sets items"]

NODES = 2_049
"""Of the grid of priorities, both ends among them."""
SETS = 128
"""That are asked about; as many of every size."""
EXAMINING = 2_000_000
"""Added to a seed: sets that neither training nor the published exams have drawn."""


class Sets(NamedTuple):
    """Random sets, as `max_retrieval.data` has them: classes uniform, the answer that of the item
    of highest priority, a query that says nothing.
    """

    priority: Rows
    label: Int[np.ndarray, "sets items"]
    query: Float[np.ndarray, " sets"]

    @property
    def highest(self) -> Int[np.ndarray, " sets"]:
        return self.priority.argmax(1)

    @property
    def answer(self) -> Int[np.ndarray, " sets"]:
        return taken(self.label, self.highest)


def draw(seed: int, sets: int, items: int) -> Sets:
    generator = np.random.default_rng((EXAMINING + seed, items))
    return Sets(
        generator.random((sets, items), np.float32),
        generator.integers(0, CLASSES, (sets, items), np.int32),
        generator.random(sets, np.float32),
    )


@dataclass(frozen=True)
class Head:
    """A trained head, its items tabulated."""

    weights: dict[str, np.ndarray]
    scaled: bool
    hidden: Float[np.ndarray, "nodes width"]
    """By class and then by priority."""

    @staticmethod
    def of(weights: dict[str, np.ndarray], scaled: bool) -> Head:
        by_priority, by_class = weights["item1"][0], weights["item1"][1:]
        grid = np.linspace(0, 1, NODES, dtype=np.float32)[:, None]
        before = by_class[:, None] + grid * by_priority + weights["item1_bias"]
        return Head(weights, scaled, gelu(before).reshape(-1, WIDTH))

    def logits(self, sets: Sets) -> Rows:
        asked = self._linear("asked2", gelu(self._linear("asked1", sets.query[:, None])))
        query = asked @ self.weights["query"] / (math.sqrt(WIDTH) if self.scaled else 1.0)
        direction = query @ self.weights["key"].T
        table = (direction @ self.weights["item2"].T) @ self.hidden.T
        table += (direction @ self.weights["item2_bias"])[:, None]
        node, share = _places(sets)
        low, high = (np.take_along_axis(table, place, 1) for place in (node, node + 1))
        return low + share * (high - low)

    def answers(self, sets: Sets, given: Rows) -> Int[np.ndarray, " sets"]:
        """The class that the head names if items have these weights."""
        node, share = _places(sets)
        upper, nodes = given * share, len(self.hidden)
        mass = np.stack(
            [
                np.bincount(at, one - above, nodes) + np.bincount(at + 1, above, nodes)
                for at, one, above in zip(node, given, upper, strict=True)
            ]
        ).astype(np.float32)
        items = mass @ self.hidden @ self.weights["item2"]
        items += given.sum(1, keepdims=True) * self.weights["item2_bias"]
        hidden = gelu(self._linear("answer1", items @ self.weights["value"]))
        return self._linear("answer2", hidden).argmax(1)

    def _linear(self, name: str, inputs: np.ndarray) -> np.ndarray:
        return inputs @ self.weights[name] + self.weights[f"{name}_bias"]


def _places(sets: Sets) -> tuple[np.ndarray, np.ndarray]:
    """The node below each item, and how far it is on the way to the next."""
    along = sets.priority * np.float32(NODES - 1)
    below = np.minimum(along.astype(np.int32), NODES - 2)
    return sets.label * np.int32(NODES) + below, along - below.astype(np.float32)


def gelu(inputs: np.ndarray) -> np.ndarray:
    """By the hyperbolic tangent, as the heads were trained with."""
    inner = math.sqrt(2 / math.pi) * (inputs + 0.044715 * inputs * inputs * inputs)
    return 0.5 * inputs * (1 + np.tanh(inner))


@lru_cache(maxsize=1)
def trained() -> heads.Heads:
    """All ten of Table 1 in a clone of the repository, else the three of the package."""
    return heads.load_available()


@lru_cache(maxsize=10)
def head(seed: int) -> Head:
    return Head.of(trained().of(seed), trained().training.scaled)


@lru_cache(maxsize=4)  # up to 25 MB each: what a slider goes back and forth between
def looked_at(seed: int, items: int) -> tuple[Sets, Rows]:
    """The sets of this size, and the head's logits."""
    sets = draw(seed, SETS, items)
    return sets, head(seed).logits(sets)


@dataclass(frozen=True)
class Seen:
    """What a head did with its sets, under one way of giving weights."""

    given: Rows
    right: np.ndarray
    """Whether each answer is."""
    of_maximum: np.ndarray
    """The weight of the item of highest priority."""
    entropy: np.ndarray
    inverse_temperature: np.ndarray


@lru_cache(maxsize=4)
def plain(seed: int, items: int) -> Seen:
    """Under softmax."""
    return _seen(seed, items, np.ones(SETS))


def sharpened(seed: int, items: int, policy: Policy) -> Seen:
    before = plain(seed, items).entropy
    return _seen(seed, items, inverse_temperatures(policy, before, np.full(SETS, items)))


def _seen(seed: int, items: int, factor: np.ndarray) -> Seen:
    sets, logits = looked_at(seed, items)
    # From the top first: a factor would magnify the rounding of logits that are hundreds.
    offsets = logits - logits.max(1, keepdims=True)
    scaled = offsets * factor[:, None].astype(logits.dtype)
    given = softmax(scaled)
    right = head(seed).answers(sets, given) == sets.answer
    return Seen(given, right, taken(given, sets.highest), entropy(scaled), factor)


def ranked(seed: int, items: int) -> np.ndarray:
    """Whether the item of largest logit has the right class: what no temperature can change."""
    sets, logits = looked_at(seed, items)
    return taken(sets.label, logits.argmax(1)) == sets.answer


def taken(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, place[:, None], 1)[:, 0]
