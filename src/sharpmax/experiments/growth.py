"""The same logits, more and more of them, under softmax, adaptive temperature, hard selection.

One vector of logits, drawn once: a maximum at `spread` in front, the others uniform below it. Of it
the first n are shown, so nothing changes from row to row but the number of items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sharpmax import theory
from sharpmax.ops import adaptive_temperature_softmax, entropy, softmax
from sharpmax.policies import PAPER
from sharpmax.results import Result, Stopwatch


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = tuple(2**power for power in range(4, 15))
    spread: float = 8.0
    seed: int = 0


def hard(logits: np.ndarray) -> np.ndarray:
    """All weight on the largest logit: the limit of temperature 0, outside the theorem."""
    weights = np.zeros_like(logits)
    weights[np.argmax(logits)] = 1.0
    return weights


METHODS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": softmax,
    "adaptive": adaptive_temperature_softmax,
    "hard": hard,
}


def run(config: Config = Config()) -> Result:  # noqa: B008 - frozen, so sharing the default is safe
    watch = Stopwatch()
    generator = np.random.default_rng(config.seed)
    logits = config.spread * generator.random(max(config.sizes))
    logits[0] = config.spread
    rows: list[dict[str, Any]] = [
        {"method": name, "items": size, **_measure(method(logits[:size]))}
        for name, method in METHODS.items()
        for size in config.sizes
    ]
    for row in rows:
        size = row["items"]
        inverse = _inverse_temperature(row["method"], logits[:size])
        # Hard selection is temperature 0: no bound below 1.
        bound = (
            1.0 if inverse is None else theory.weight_bounds(size, config.spread, 1 / inverse)[1]
        )
        row |= {"inverse_temperature": inverse, "largest_weight_allowed": bound}
    return Result(
        kind="growth",
        config=asdict(config),
        seeds=(config.seed,),
        measurements={"rows": rows},
        provenance=watch.provenance(),
    )


def _inverse_temperature(method: str, logits: np.ndarray) -> float | None:
    constants = {"softmax": 1.0, "hard": None}
    return constants[method] if method in constants else float(PAPER(entropy(logits), logits.size))


def _measure(weights: np.ndarray) -> dict[str, Any]:
    """Of the weights themselves, so that the same yardstick serves every method."""
    positive = weights[weights > 0]
    nats = float(np.sum(positive * -np.log(positive)))
    return {
        "largest_weight": float(weights.max()),
        "entropy": nats,
        "effective_items": float(np.exp(nats)),
    }
