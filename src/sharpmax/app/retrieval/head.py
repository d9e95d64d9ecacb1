"""Evaluate a trained max-retrieval head on sets of up to 16,384 items, fast enough for a slider.

The head's input for an item is a function of one number, its priority, for each of ten classes. So
that function is computed once, at the nodes of a fine grid, and interpolated between them: an item
then costs a few additions instead of two layers. The interpolation error is far below what a weight
shows; tests compare it with `sharpmax.experiments.max_retrieval.model`, item by item.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sharpmax.experiments.max_retrieval import heads
from sharpmax.experiments.max_retrieval.data import CLASSES
from sharpmax.experiments.max_retrieval.model import WIDTH
from sharpmax.ops import SoftmaxState, entropy, softmax
from sharpmax.policies import Policy, inverse_temperatures

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Weights = Float[np.ndarray, "sets items"]

GRID_NODES = 2_049
"""Nodes of the grid of priorities, both ends included."""
SETS = 128
"""Number of sets of each size."""
SEED_OFFSET = 2_000_000
"""Added to a seed: these sets occur neither in training nor in the published evaluations."""


class Sets(NamedTuple):
    """Random sets, as in `max_retrieval.data`: the answer is the class of the highest priority."""

    priority: Float[np.ndarray, "sets items"]
    label: Int[np.ndarray, "sets items"]
    query: Float[np.ndarray, " sets"]
    """Random numbers that carry no information."""

    @property
    def highest(self) -> Int[np.ndarray, " sets"]:
        return self.priority.argmax(1)

    @property
    def answer(self) -> Int[np.ndarray, " sets"]:
        return pick(self.label, self.highest)


def draw_sets(seed: int, sets: int, items: int) -> Sets:
    """Draw random sets; the same arguments give the same sets."""
    generator = np.random.default_rng((SEED_OFFSET + seed, items))
    return Sets(
        generator.random((sets, items), np.float32),
        generator.integers(0, CLASSES, (sets, items), np.int32),
        generator.random(sets, np.float32),
    )


@dataclass(frozen=True)
class Head:
    """A trained head with a table of its hidden layer."""

    weights: dict[str, np.ndarray]
    scaled: bool
    """Whether logits are divided by the square root of the width."""
    hidden: Float[np.ndarray, "nodes width"]
    """Hidden layer of an item at each node, by class and then by priority."""

    @staticmethod
    def from_weights(weights: dict[str, np.ndarray], scaled: bool) -> Head:
        """Tabulate the hidden layer of a trained head."""
        by_priority, by_class = weights["item1"][0], weights["item1"][1:]
        grid = np.linspace(0, 1, GRID_NODES, dtype=np.float32)[:, None]
        inputs = by_class[:, None] + grid * by_priority + weights["item1_bias"]
        return Head(weights, scaled, gelu(inputs).reshape(-1, WIDTH))

    def logits(self, sets: Sets) -> Weights:
        """Return the logit of every item: project the table on the key direction, then look up."""
        asked = self._linear("asked2", gelu(self._linear("asked1", sets.query[:, None])))
        query = asked @ self.weights["query"] / (math.sqrt(WIDTH) if self.scaled else 1.0)
        direction = query @ self.weights["key"].T
        table = (direction @ self.weights["item2"].T) @ self.hidden.T
        table += (direction @ self.weights["item2_bias"])[:, None]
        node, share = _grid_position(sets)
        low = np.take_along_axis(table, node, 1)
        high = np.take_along_axis(table, node + 1, 1)
        return low + share * (high - low)

    def answers(self, sets: Sets, weights: Weights) -> Int[np.ndarray, " sets"]:
        """Return the class that the head names if its items have these weights."""
        node, share = _grid_position(sets)
        upper, nodes = weights * share, len(self.hidden)
        mass = np.stack(
            [
                np.bincount(at, row - above, nodes) + np.bincount(at + 1, above, nodes)
                for at, row, above in zip(node, weights, upper, strict=True)
            ]
        ).astype(np.float32)
        items = mass @ self.hidden @ self.weights["item2"]
        items += weights.sum(1, keepdims=True) * self.weights["item2_bias"]
        hidden = gelu(self._linear("answer1", items @ self.weights["value"]))
        return self._linear("answer2", hidden).argmax(1)

    def _linear(self, name: str, inputs: np.ndarray) -> np.ndarray:
        return inputs @ self.weights[name] + self.weights[f"{name}_bias"]


def _grid_position(
    sets: Sets,
) -> tuple[Int[np.ndarray, "sets items"], Float[np.ndarray, "sets items"]]:
    """Return the node below each item, and its distance from there as a share of one step."""
    along = sets.priority * np.float32(GRID_NODES - 1)
    below = np.minimum(along.astype(np.int32), GRID_NODES - 2)
    return sets.label * np.int32(GRID_NODES) + below, along - below.astype(np.float32)


def gelu(inputs: np.ndarray) -> np.ndarray:
    """Return GELU in its tanh form, which the heads were trained with."""
    inner = math.sqrt(2 / math.pi) * (inputs + 0.044715 * inputs * inputs * inputs)
    return 0.5 * inputs * (1 + np.tanh(inner))


@lru_cache(maxsize=1)
def load_heads() -> heads.Heads:
    """Load the trained heads that come with the package."""
    return heads.load_available()


@lru_cache(maxsize=10)
def load_head(seed: int) -> Head:
    """Load the head that was trained from this seed."""
    return Head.from_weights(load_heads().of(seed), load_heads().training.scaled)


@lru_cache(maxsize=4)  # up to 25 MB each, for a slider that moves back and forth
def sets_and_logits(seed: int, items: int) -> tuple[Sets, Weights]:
    """Return sets of this size and the head's logits for them."""
    sets = draw_sets(seed, SETS, items)
    return sets, load_head(seed).logits(sets)


@dataclass(frozen=True)
class Outcome:
    """What a head did with its sets, with softmax or with a policy."""

    weights: Weights
    right: Bool[np.ndarray, " sets"]
    """Whether each answer is right."""
    maximum_weight: Float[np.ndarray, " sets"]
    """The weight of the item of highest priority."""
    entropy: Float[np.ndarray, " sets"]
    inverse_temperature: Float[np.ndarray, " sets"]


@lru_cache(maxsize=4)
def attend_plain(seed: int, items: int) -> Outcome:
    """Return what the head does with softmax."""
    return _attend(seed, items, np.ones(SETS))


def attend(seed: int, items: int, policy: Policy) -> Outcome:
    """Return what the head does when a policy sharpens it."""
    plain_entropy = attend_plain(seed, items).entropy
    varentropy = SoftmaxState.of(sets_and_logits(seed, items)[1]).varentropy
    factor = inverse_temperatures(policy, plain_entropy, np.full(SETS, items), varentropy)
    return _attend(seed, items, factor)


def _attend(seed: int, items: int, inverse_temperature: Float[np.ndarray, " sets"]) -> Outcome:
    sets, logits = sets_and_logits(seed, items)
    # Subtract the maximum first: the factor would magnify the rounding of logits in the hundreds.
    offsets = logits - logits.max(1, keepdims=True)
    scaled = offsets * inverse_temperature[:, None].astype(logits.dtype)
    weights = softmax(scaled)
    right = load_head(seed).answers(sets, weights) == sets.answer
    maximum_weight = pick(weights, sets.highest)
    return Outcome(weights, right, maximum_weight, entropy(scaled), inverse_temperature)


@lru_cache(maxsize=256)
def measure_accuracy(seed: int, items: int, policy: Any) -> float:
    """Return the share of right answers, with softmax (None) or with a policy."""
    outcome = attend_plain(seed, items) if policy is None else attend(seed, items, policy)
    return float(outcome.right.mean())


def ranks_correctly(seed: int, items: int) -> Bool[np.ndarray, " sets"]:
    """Return whether the largest logit has the right class, which no temperature can change."""
    sets, logits = sets_and_logits(seed, items)
    return pick(sets.label, logits.argmax(1)) == sets.answer


def pick(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the value at one index per row."""
    return np.take_along_axis(values, index[:, None], 1)[:, 0]
