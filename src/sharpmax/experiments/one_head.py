"""Figure 1: one attention head over a fixed vocabulary, sharp on short inputs, disperses as they
grow.

Theorem 2.2 of arXiv 2410.01104 says that this must happen. The computation is a real head: token
embeddings of unit mean square (what a normalisation layer leaves), random query and key
projections, logits `<Qy, Kx>/sqrt(dim)` scaled so that the vocabulary's logits span `spread`. The
token with the largest logit, the needle, occurs once; every other item is drawn from the rest of
the vocabulary. The bounds use nothing but the spread and n.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from sharpmax import theory
from sharpmax.ops import softmax
from sharpmax.ops.state import SoftmaxState
from sharpmax.results import Result, Stopwatch

PIECE = 65_536
"""Items drawn at a time: the state of a row is merged piece by piece, so length costs time and not
memory.
"""


@dataclass(frozen=True)
class Config:
    vocabulary: int = 64
    dimension: int = 64
    spread: float = 6.0
    sizes: tuple[int, ...] = tuple(2**power for power in range(2, 21))
    shown_sizes: tuple[int, ...] = (8, 32, 128, 512)
    repeats: int = 10
    epsilon: float = 0.05
    seed: int = 0


def run(config: Config = Config()) -> Result:  # noqa: B008 - frozen, so sharing the default is safe
    watch = Stopwatch()
    generator = np.random.default_rng(config.seed)
    vocabulary = vocabulary_logits(config, generator)
    sampled = [
        [_measure(vocabulary, size, generator) for _ in range(config.repeats)]
        for size in config.sizes
    ]
    tight = [theory.weight_bounds(size, config.spread) for size in config.sizes]
    printed = [theory.paper_weight_bounds(size, config.spread) for size in config.sizes]
    measurements = {
        "sizes": list(config.sizes),
        "needle_weight": [[row["needle"] for row in rows] for rows in sampled],
        "smallest_weight": [[row["smallest"] for row in rows] for rows in sampled],
        "entropy": [[row["entropy"] for row in rows] for rows in sampled],
        "tight_low": [low for low, _ in tight],
        "tight_high": [high for _, high in tight],
        "paper_low": [low for low, _ in printed],
        "paper_high": [high for _, high in printed],
        "minimum_entropy": [theory.minimum_entropy(size, config.spread) for size in config.sizes],
        "dispersed_from": theory.items_until_dispersed(config.spread, config.epsilon),
        "shown_weights": [_weights(vocabulary, size, generator) for size in config.shown_sizes],
    }
    return Result(
        kind="figure1",
        config=asdict(config),
        seeds=(config.seed,),
        measurements=measurements,
        provenance=watch.provenance(),
    )


def vocabulary_logits(config: Config, generator: np.random.Generator) -> np.ndarray:
    """The head's logit for every token of the vocabulary, [vocabulary], the needle last."""
    shape = (config.vocabulary, config.dimension)
    embeddings = generator.standard_normal(shape)
    embeddings /= np.sqrt(np.mean(embeddings**2, axis=-1, keepdims=True))
    query_weight, key_weight = generator.standard_normal((2, config.dimension, config.dimension))
    query = query_weight @ embeddings[0]
    logits = (embeddings @ key_weight.T) @ query / np.sqrt(config.dimension)
    logits *= config.spread / np.ptp(logits)
    return np.sort(logits)


def _draw(vocabulary: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    return vocabulary[generator.integers(0, vocabulary.size - 1, size=size)]


def _measure(vocabulary: np.ndarray, size: int, generator: np.random.Generator) -> dict[str, float]:
    """Weights of one random input of `size` items, seen in pieces."""
    state = SoftmaxState.of(vocabulary[-1:])
    for begin in range(0, size - 1, PIECE):
        piece = _draw(vocabulary, min(PIECE, size - 1 - begin), generator)
        state = state.merge(SoftmaxState.of(piece))
    return {
        "needle": float(state.max_weight),
        "smallest": float(np.exp(state.min - state.log_sum_exp)),
        "entropy": float(state.entropy),
    }


def _weights(vocabulary: np.ndarray, size: int, generator: np.random.Generator) -> list[float]:
    """All weights of one input, the needle first."""
    row = np.concatenate([vocabulary[-1:], _draw(vocabulary, size - 1, generator)])
    weights: list[float] = softmax(row).tolist()
    return weights
