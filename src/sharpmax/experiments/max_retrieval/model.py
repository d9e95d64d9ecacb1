"""The paper's model: one attention head between two small networks.

    h_i = gelu(W1 x_i + b1)                              items, priority and one-hot class
    e_i = <Q psi(q), K (W2 h_i + b2)> / sqrt(width)      one query per set
    answer = phi(sum_i a_i V (W2 h_i + b2)),             a = softmax(e)

psi and phi are two-layer GELU networks too. Everything between the GELU of an item and the pooling
is linear, so the matrices can be applied where there is one vector per set:

    e_i = <W2' K' Q psi(q), h_i> + <b2, K' Q psi(q)>
    sum_i a_i V (W2 h_i + b2) = V (W2 sum_i a_i h_i + b2 sum_i a_i)

This is the same function with the same gradients, at 128 multiplications per item instead of
49,000. `reference` computes it item by item, as written above. Section 2 and Appendix of arXiv
2410.01104; docs/max_retrieval.md says what is known of the details.

A `Design` describes a head that differs from the paper's: another normaliser than softmax, or other
layers around it. `DESIGNS` has all that can be trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax import normalisers
from sharpmax.experiments.max_retrieval.data import CLASSES, FEATURES, Sets, features
from sharpmax.normalisers import NORMALISERS, Differential, Stieltjes, ThresholdedDifferential
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
"""normaliser(logits [sets items], where=present) -> the items' weights. In a paired design it takes
two arrays of logits."""

LOWER_LIMITS = {"alpha": 1.0, "power": 0.0}
"""Fields of normalisers that must stay above a limit. What is learned is the logarithm of their
distance from it; for other fields it is the difference from their initial value."""


@dataclass(frozen=True)
class Design:
    """What a head is made of; the paper's head by default."""

    normaliser: Normaliser = softmax
    learned: tuple[str, ...] = ()
    """Fields of the normaliser that are trained with the weights, one number each."""
    paired: bool = False
    """A second query and key give the normaliser a second row of logits."""
    normed: bool = False
    """Normalise the attention output before the answer network: the variance of a mean of n items
    falls like 1/n, and layer normalisation undoes that (arXiv 2504.02827)."""
    stepped: bool = False
    """The hidden layer of the answer network is 0 or 1, which no continuous layer is (section 5 of
    arXiv 2410.01104). Its gradient is that of a sigmoid."""


PAPER_DESIGN = Design()


def make_design(normaliser: normalisers.Normaliser) -> Design | None:
    """Return the head with this normaliser, its parameters learned.

    None for normalisers that need more than the logits of one row.
    """
    paired = isinstance(normaliser, (Differential, ThresholdedDifferential))
    if normaliser.needs is not None and not paired:
        return None
    return Design(normaliser, learned=normaliser.parameters, paired=paired)


DESIGNS: Final[dict[str, Design]] = {
    name: design
    for name, normaliser in NORMALISERS.items()
    if (design := make_design(normaliser)) is not None
} | {
    "softmax": Design(),  # no learned temperature: the queries already have a scale
    # Starts from a factor of log n, as in the published curve on this task.
    "stieltjes": Design(Stieltjes(scale=1.0, bias=0.0), learned=Stieltjes.parameters),
    # Its output is normalised as in the paper. The threshold is learned from 0: at the published 1
    # no item would pass at the start, and without a gradient none ever would.
    "thresholded-differential": Design(
        ThresholdedDifferential(threshold=0.0),
        learned=ThresholdedDifferential.parameters,
        paired=True,
        normed=True,
    ),
    "layer-norm": Design(normed=True),
    "step": Design(stepped=True),
}


def initial_weights(key: Array, design: Design = PAPER_DESIGN) -> Weights:
    """Draw matrices with variance 1 / inputs; biases are 0, learned fields at their start."""
    draw = jax.nn.initializers.lecun_normal()
    keys = jax.random.split(key, len(SHAPES))
    weights = {
        name: draw(matrix_key, shape, jnp.float32)
        for matrix_key, (name, shape) in zip(keys, SHAPES.items(), strict=True)
    }
    for name, (_, outputs) in SHAPES.items():
        if name not in WITHOUT_BIAS:
            weights[f"{name}_bias"] = jnp.zeros(outputs, jnp.float32)
    if design.paired:
        pair = jax.random.split(jax.random.fold_in(key, 1))
        for name, matrix_key in zip(("query", "key"), pair, strict=True):
            weights[f"second_{name}"] = draw(matrix_key, SHAPES[name], jnp.float32)
    if design.normed:
        weights["norm"] = jnp.ones(WIDTH, jnp.float32)
        weights["norm_bias"] = jnp.zeros(WIDTH, jnp.float32)
    for field in design.learned:
        weights[f"normaliser_{field}"] = jnp.zeros((1, 1), jnp.float32)
    return weights


class Encoded(NamedTuple):
    """A batch of sets as the normaliser sees it."""

    hidden: Float[Array, "sets items width"]
    logits: tuple[Float[Array, "sets items"], ...]
    """One array of logits; two in a paired design."""


def encode(weights: Weights, sets: Sets, design: Design = PAPER_DESIGN, *, scaled: bool) -> Encoded:
    """Compute the hidden items and the head's logits, divided by sqrt(width) if `scaled`."""
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
    return Encoded(hidden, tuple(rows))


def bind_normaliser(weights: Weights, design: Design) -> Normaliser:
    """Return the normaliser with the values that its fields have learned."""
    if not design.learned:
        return design.normaliser
    initial: Any = design.normaliser
    fields = {}
    for name in design.learned:
        start, learned = getattr(initial, name), weights[f"normaliser_{name}"]
        limit = LOWER_LIMITS.get(name)
        fields[name] = (
            start + learned if limit is None else limit + (start - limit) * jnp.exp(learned)
        )
    return replace(initial, **fields)


def classify(
    weights: Weights,
    pooled: Float[Array, "*batch width"],
    mass: Float[Array, "*batch"],
    design: Design = PAPER_DESIGN,
) -> Float[Array, "*batch classes"]:
    """Return class logits from the weighted sum of hidden items and the sum of their weights."""
    items = pooled @ weights["item2"] + mass[..., None] * weights["item2_bias"]
    return _answer_network(weights, items @ weights["value"], design)


def forward(
    weights: Weights, sets: Sets, design: Design = PAPER_DESIGN, *, scaled: bool
) -> Float[Array, "sets classes"]:
    """Return the class logits of every set."""
    encoded = encode(weights, sets, design, scaled=scaled)
    attention = bind_normaliser(weights, design)(*encoded.logits, where=sets.present)
    pooled = jnp.einsum("si,sih->sh", attention, encoded.hidden)
    return classify(weights, pooled, jnp.sum(attention, axis=1), design)


def reference(
    weights: Weights, sets: Sets, design: Design = PAPER_DESIGN, *, scaled: bool
) -> Float[Array, "sets classes"]:
    """Return the same as `forward`, with every matrix applied to every item: the specification."""
    items = _two_layers(weights, "item", features(sets))
    asked = _two_layers(weights, "asked", sets.query[:, None])
    rows = []
    for prefix in _prefixes(design):
        query, keys = asked @ weights[f"{prefix}query"], items @ weights[f"{prefix}key"]
        logits = jnp.einsum("sih,sh->si", keys, query)
        rows.append(logits / math.sqrt(WIDTH) if scaled else logits)
    attention = bind_normaliser(weights, design)(*rows, where=sets.present)
    attended = jnp.einsum("si,sih->sh", attention, items @ weights["value"])
    return _answer_network(weights, attended, design)


def _prefixes(design: Design) -> tuple[str, ...]:
    """Return the name prefixes of the query and key matrices, one per row of logits."""
    return ("", "second_") if design.paired else ("",)


def _answer_network(
    weights: Weights, attended: Float[Array, "*batch width"], design: Design
) -> Float[Array, "*batch classes"]:
    if design.normed:
        attended = jax.nn.standardize(attended) * weights["norm"] + weights["norm_bias"]
    hidden = _linear(weights, "answer1", attended)
    return _linear(weights, "answer2", _step(hidden) if design.stepped else jax.nn.gelu(hidden))


def _step(inputs: Array) -> Array:
    """Return 1 above 0 and 0 elsewhere, with the gradient of a sigmoid."""
    smooth = jax.nn.sigmoid(inputs)
    return smooth + jax.lax.stop_gradient((inputs > 0).astype(inputs.dtype) - smooth)


def _two_layers(weights: Weights, name: str, inputs: Array) -> Array:
    return _linear(weights, f"{name}2", jax.nn.gelu(_linear(weights, f"{name}1", inputs)))


def _linear(weights: Weights, name: str, inputs: Array) -> Array:
    # As one matrix of rows: with items on their own axis, XLA's gradient of a matrix with 11 inputs
    # is six times slower.
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = rows @ weights[name] + weights[f"{name}_bias"]
    return outputs.reshape(*inputs.shape[:-1], -1)
