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

A `Design` says where a head is another than the paper's: another normaliser than softmax, or other
layers around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

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
"""normaliser(logits [sets items], where=present) -> the items' weights; of two rows of logits in a
paired design."""


FLOORS = {"alpha": 1.0, "power": 0.0}
"""Fields of normalisers that mean nothing below a number: what is learned is the logarithm of their
distance from it. Of others it is the difference from where they begin."""


@dataclass(frozen=True)
class Design:
    """What a head is made of; by default as in the paper."""

    normaliser: Normaliser = softmax
    learned: tuple[str, ...] = ()
    """Fields of the normaliser that are trained with the weights, one number each."""
    paired: bool = False
    """A second query and key give the normaliser a second row of logits."""
    normed: bool = False
    """Layer normalisation of what attention gives, before the answer's network: the variance of a
    mean of n items falls like 1/n, and here it does not (arXiv 2504.02827)."""
    stepped: bool = False
    """The hidden layer of the answer's network is 0 or 1, which no continuous layer is (section 5
    of arXiv 2410.01104); its gradient is that of a sigmoid."""


AS_IN_THE_PAPER = Design()


def initial(key: Array, design: Design = AS_IN_THE_PAPER) -> Weights:
    """Matrices normal with variance 1 / inputs, biases 0, learned fields where they begin."""
    draw = jax.nn.initializers.lecun_normal()
    keys = jax.random.split(key, len(SHAPES))
    weights = {
        name: draw(one, shape, jnp.float32)
        for one, (name, shape) in zip(keys, SHAPES.items(), strict=True)
    }
    for name, (_, outputs) in SHAPES.items():
        if name not in WITHOUT_BIAS:
            weights[f"{name}_bias"] = jnp.zeros(outputs, jnp.float32)
    if design.paired:
        for name, one in zip(
            ("query", "key"), jax.random.split(jax.random.fold_in(key, 1)), strict=True
        ):
            weights[f"second_{name}"] = draw(one, SHAPES[name], jnp.float32)
    if design.normed:
        weights["norm"] = jnp.ones(WIDTH, jnp.float32)
        weights["norm_bias"] = jnp.zeros(WIDTH, jnp.float32)
    for field in design.learned:
        weights[f"normaliser_{field}"] = jnp.zeros((1, 1), jnp.float32)
    return weights


class Seen(NamedTuple):
    """What the head sees of its sets, before any weight is given."""

    hidden: Float[Array, "sets items width"]
    logits: tuple[Float[Array, "sets items"], ...]
    """One row of logits a set; two of a paired design."""


def look(weights: Weights, sets: Sets, design: Design = AS_IN_THE_PAPER, *, scaled: bool) -> Seen:
    """The hidden items and the head's logits. `scaled`: logits divided by sqrt(width)."""
    hidden = jax.nn.gelu(_linear(weights, "item1", features(sets)))
    asked = _two_layers(weights, "asked", sets.query[:, None])
    rows = []
    for prefix in _prefixes(design):
        query = asked @ weights[f"{prefix}query"]
        if scaled:
            query = query / math.sqrt(WIDTH)
        direction = query @ weights[f"{prefix}key"].T
        logits = jnp.einsum("sih,sh->si", hidden, direction @ weights["item2"].T)
        rows.append(logits + (direction @ weights["item2_bias"])[:, None])
    return Seen(hidden, tuple(rows))


def bound(weights: Weights, design: Design) -> Normaliser:
    """The normaliser with the fields that it has learned."""
    if not design.learned:
        return design.normaliser
    begun: Any = design.normaliser
    fields = {}
    for name in design.learned:
        start, learned = getattr(begun, name), weights[f"normaliser_{name}"]
        floor = FLOORS.get(name)
        fields[name] = (
            start + learned if floor is None else floor + (start - floor) * jnp.exp(learned)
        )
    return replace(begun, **fields)


def answer(
    weights: Weights,
    pooled: Float[Array, "... width"],
    mass: Float[Array, "..."],
    design: Design = AS_IN_THE_PAPER,
) -> Float[Array, "... classes"]:
    """Class logits from the weighted sum of hidden items and the sum of their weights."""
    items = pooled @ weights["item2"] + mass[..., None] * weights["item2_bias"]
    return _read(weights, items @ weights["value"], design)


def forward(
    weights: Weights, sets: Sets, design: Design = AS_IN_THE_PAPER, *, scaled: bool
) -> Float[Array, "sets classes"]:
    """Class logits of every set."""
    seen = look(weights, sets, design, scaled=scaled)
    given = bound(weights, design)(*seen.logits, where=sets.present)
    pooled = jnp.einsum("si,sih->sh", given, seen.hidden)
    return answer(weights, pooled, jnp.sum(given, axis=1), design)


def reference(
    weights: Weights, sets: Sets, design: Design = AS_IN_THE_PAPER, *, scaled: bool
) -> Float[Array, "sets classes"]:
    """The same as the paper writes it, every matrix applied to every item: the specification."""
    items = _two_layers(weights, "item", features(sets))
    asked = _two_layers(weights, "asked", sets.query[:, None])
    rows = []
    for prefix in _prefixes(design):
        query, keys = asked @ weights[f"{prefix}query"], items @ weights[f"{prefix}key"]
        logits = jnp.einsum("sih,sh->si", keys, query)
        rows.append(logits / math.sqrt(WIDTH) if scaled else logits)
    given = bound(weights, design)(*rows, where=sets.present)
    return _read(weights, jnp.einsum("si,sih->sh", given, items @ weights["value"]), design)


def _prefixes(design: Design) -> tuple[str, ...]:
    """Of the names of the matrices that make a row of logits."""
    return ("", "second_") if design.paired else ("",)


def _read(
    weights: Weights, attended: Float[Array, "... width"], design: Design
) -> Float[Array, "... classes"]:
    """The answer's network."""
    if design.normed:
        attended = jax.nn.standardize(attended) * weights["norm"] + weights["norm_bias"]
    hidden = _linear(weights, "answer1", attended)
    return _linear(weights, "answer2", _step(hidden) if design.stepped else jax.nn.gelu(hidden))


def _step(inputs: Array) -> Array:
    """1 above 0 and 0 elsewhere, with the gradient of a sigmoid."""
    smooth = jax.nn.sigmoid(inputs)
    return smooth + jax.lax.stop_gradient((inputs > 0).astype(inputs.dtype) - smooth)


def _two_layers(weights: Weights, name: str, inputs: Array) -> Array:
    return _linear(weights, f"{name}2", jax.nn.gelu(_linear(weights, f"{name}1", inputs)))


def _linear(weights: Weights, name: str, inputs: Array) -> Array:
    # As one matrix of rows: with items on an axis of their own, XLA's gradient of a matrix with 11
    # inputs is six times slower.
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = rows @ weights[name] + weights[f"{name}_bias"]
    return outputs.reshape(*inputs.shape[:-1], -1)
