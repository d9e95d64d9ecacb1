"""The paper's one-head model, in a form in which an item costs 128 multiplications and not 49,000.

    h_i = gelu(W1 x_i + b1)                              items, priority and one-hot class
    e_i = <Q psi(q), K (W2 h_i + b2)> / sqrt(width)      one query a set
    answer = phi(sum_i a_i V (W2 h_i + b2)),             a = softmax(e)

psi and phi are two-layer GELU networks too. All that follows the GELU of an item is linear until
the pooling, so the matrices move to where there is one vector a set:

    e_i = <W2' K' Q psi(q), h_i> + <b2, K' Q psi(q)>
    sum_i a_i V (W2 h_i + b2) = V (W2 sum_i a_i h_i + b2 sum_i a_i)

The same function with the same gradients; `reference` computes it item by item, as it is written
above. Section 2 and Appendix of arXiv 2410.01104, where known: see docs/max_retrieval.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.experiments.max_retrieval.data import CLASSES, FEATURES, Sets, features
from sharpmax.ops import softmax

if TYPE_CHECKING:
    from jaxtyping import Float

WIDTH = 128

Weights = dict[str, Array]
"""The trained numbers by name; a matrix maps a row vector, [inputs outputs]."""

SHAPES = {
    "item1": (FEATURES, WIDTH),
    "item2": (WIDTH, WIDTH),
    "asked1": (1, WIDTH),
    "asked2": (WIDTH, WIDTH),
    "query": (WIDTH, WIDTH),
    "key": (WIDTH, WIDTH),
    "value": (WIDTH, WIDTH),
    "answer1": (WIDTH, WIDTH),
    "answer2": (WIDTH, CLASSES),
}
WITHOUT_BIAS = ("query", "key", "value")

Normaliser = Callable[..., Array]
"""normaliser(logits [sets items], where=present) -> the items' weights."""


def initial(key: Array) -> Weights:
    """Matrices normal with variance 1 / inputs, biases 0."""
    draw = jax.nn.initializers.lecun_normal()
    keys = jax.random.split(key, len(SHAPES))
    weights = {
        name: draw(one, shape, jnp.float32)
        for one, (name, shape) in zip(keys, SHAPES.items(), strict=True)
    }
    for name, (_, outputs) in SHAPES.items():
        if name not in WITHOUT_BIAS:
            weights[f"{name}_bias"] = jnp.zeros(outputs, jnp.float32)
    return weights


class Seen(NamedTuple):
    """What the head sees of its sets, before any weight is given."""

    hidden: Float[Array, "sets items width"]
    logits: Float[Array, "sets items"]


def look(weights: Weights, sets: Sets, *, scaled: bool) -> Seen:
    """The hidden items and the head's logits. `scaled`: logits divided by sqrt(width)."""
    hidden = jax.nn.gelu(_linear(weights, "item1", features(sets)))
    query = _two_layers(weights, "asked", sets.query[:, None]) @ weights["query"]
    if scaled:
        query = query / math.sqrt(WIDTH)
    direction = query @ weights["key"].T
    logits = jnp.einsum("sih,sh->si", hidden, direction @ weights["item2"].T)
    return Seen(hidden, logits + (direction @ weights["item2_bias"])[:, None])


def answer(
    weights: Weights, pooled: Float[Array, "... width"], mass: Float[Array, "..."]
) -> Float[Array, "... classes"]:
    """Class logits from the weighted sum of hidden items and the sum of their weights."""
    items = pooled @ weights["item2"] + mass[..., None] * weights["item2_bias"]
    return _two_layers(weights, "answer", items @ weights["value"])


def forward(
    weights: Weights, sets: Sets, normaliser: Normaliser = softmax, *, scaled: bool
) -> Float[Array, "sets classes"]:
    """Class logits of every set."""
    seen = look(weights, sets, scaled=scaled)
    given = normaliser(seen.logits, where=sets.present)
    return answer(weights, jnp.einsum("si,sih->sh", given, seen.hidden), jnp.sum(given, axis=1))


def reference(
    weights: Weights, sets: Sets, normaliser: Normaliser = softmax, *, scaled: bool
) -> Float[Array, "sets classes"]:
    """The same as the paper writes it, every matrix applied to every item: the specification."""
    items = _two_layers(weights, "item", features(sets))
    query = _two_layers(weights, "asked", sets.query[:, None]) @ weights["query"]
    logits = jnp.einsum("sih,sh->si", items @ weights["key"], query)
    if scaled:
        logits = logits / math.sqrt(WIDTH)
    given = normaliser(logits, where=sets.present)
    pooled = jnp.einsum("si,sih->sh", given, items @ weights["value"])
    return _two_layers(weights, "answer", pooled)


def _two_layers(weights: Weights, name: str, inputs: Array) -> Array:
    return _linear(weights, f"{name}2", jax.nn.gelu(_linear(weights, f"{name}1", inputs)))


def _linear(weights: Weights, name: str, inputs: Array) -> Array:
    # As one matrix of rows: with items on an axis of their own, XLA's gradient of a matrix with 11
    # inputs is six times slower.
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = rows @ weights[name] + weights[f"{name}_bias"]
    return outputs.reshape(*inputs.shape[:-1], -1)
