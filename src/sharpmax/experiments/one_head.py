"""Figure 1: one attention head over a fixed vocabulary disperses as its input grows.

Theorem 2.2 of arXiv 2410.01104 says that this must happen. The head is a real one: token embeddings
with unit mean square (the output of a normalisation layer), random query and key projections, and
logits `<Qy, Kx> / sqrt(dimension)`, scaled so that the logits of the vocabulary span `spread`. The
token with the largest logit, the needle, occurs once. Every other item is drawn from the rest of
the vocabulary. The bounds depend only on the spread and on the number of items.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from sharpmax import theory
from sharpmax.ops import softmax
from sharpmax.ops.state import SoftmaxState
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Config", "run"]

CHUNK = 65_536
"""Items drawn at a time. The state of a row is merged chunk by chunk, so that long inputs cost time
but not memory."""


@dataclass(frozen=True)
class Config:
    """Settings of Figure 1."""

    vocabulary: int = 64
    """Number of tokens in the vocabulary."""
    dimension: int = 64
    """Width of the embeddings."""
    spread: float = 6.0
    """Largest minus smallest logit of the vocabulary."""
    sizes: tuple[int, ...] = tuple(2**power for power in range(2, 21))
    """Numbers of items at which weights are measured."""
    shown_sizes: tuple[int, ...] = (8, 32, 128, 512)
    """Numbers of items for which all weights are stored."""
    repeats: int = 10
    """Random inputs per size."""
    epsilon: float = 0.05
    """Weight below which the head counts as dispersed."""
    seed: int = 0
    """Seed of the head and its inputs."""


def run(config: Config = Config()) -> Result:  # noqa: B008 - frozen, so sharing the default is safe
    """Measure the weights of a random head on growing inputs, next to the bounds of the theory.

    Args:
        config: The head and the sizes of its inputs.

    Returns:
        A result of kind `figure1`.
    """
    watch = Stopwatch()
    generator = np.random.default_rng(config.seed)
    vocabulary = vocabulary_logits(config, generator)
    samples = [
        [_measure(vocabulary, size, generator) for _ in range(config.repeats)]
        for size in config.sizes
    ]
    tight = [theory.weight_bounds(size, config.spread) for size in config.sizes]
    printed = [theory.paper_weight_bounds(size, config.spread) for size in config.sizes]
    measurements = {
        "sizes": list(config.sizes),
        "needle_weight": [[row["needle"] for row in rows] for rows in samples],
        "smallest_weight": [[row["smallest"] for row in rows] for rows in samples],
        "entropy": [[row["entropy"] for row in rows] for rows in samples],
        "tight_low": [low for low, _ in tight],
        "tight_high": [high for _, high in tight],
        "paper_low": [low for low, _ in printed],
        "paper_high": [high for _, high in printed],
        "minimum_entropy": [theory.minimum_entropy(size, config.spread) for size in config.sizes],
        "dispersed_from": theory.items_until_dispersed(config.spread, config.epsilon),
        "shown_weights": [_draw_weights(vocabulary, n, generator) for n in config.shown_sizes],
    }
    return Result(
        kind="figure1",
        config=asdict(config),
        seeds=(config.seed,),
        measurements=measurements,
        provenance=watch.provenance(),
    )


def vocabulary_logits(
    config: Config, generator: np.random.Generator
) -> Float[np.ndarray, " vocabulary"]:
    """Return the head's logit for every token of the vocabulary, in ascending order."""
    embeddings = generator.standard_normal((config.vocabulary, config.dimension))
    embeddings /= np.sqrt(np.mean(embeddings**2, axis=-1, keepdims=True))
    query_weight, key_weight = generator.standard_normal((2, config.dimension, config.dimension))
    query = query_weight @ embeddings[0]
    logits = (embeddings @ key_weight.T) @ query / np.sqrt(config.dimension)
    logits *= config.spread / np.ptp(logits)
    return np.sort(logits)


def _draw(vocabulary: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Draw logits of tokens other than the needle, which is the last of the vocabulary."""
    return vocabulary[generator.integers(0, vocabulary.size - 1, size=size)]


def _measure(vocabulary: np.ndarray, size: int, generator: np.random.Generator) -> dict[str, float]:
    """Measure the weights of one random input of `size` items."""
    state = SoftmaxState.of(vocabulary[-1:])
    for begin in range(0, size - 1, CHUNK):
        chunk = _draw(vocabulary, min(CHUNK, size - 1 - begin), generator)
        state = state.merge(SoftmaxState.of(chunk))
    return {
        "needle": float(state.max_weight),
        "smallest": float(np.exp(state.min - state.log_sum_exp)),
        "entropy": float(state.entropy),
    }


def _draw_weights(vocabulary: np.ndarray, size: int, generator: np.random.Generator) -> list[float]:
    """Return all weights of one random input, the needle first."""
    row = np.concatenate([vocabulary[-1:], _draw(vocabulary, size - 1, generator)])
    weights: list[float] = softmax(row).tolist()
    return weights
