"""Trainings that nobody ran, whose numbers are easy to follow."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpmax.hf.train.alarms import AlarmBell
from sharpmax.hf.train.rows import STATISTICS
from sharpmax.results import Result, Stopwatch

SIZES = [8, 16, 64]
RIGHT = {
    "softmax": (1.0, 0.9, 0.4),
    "softmax-tuned": (1.0, 0.9, 0.6),
    "scalable-softmax": (1.0, 0.95, 0.8),
    "entmax": (1.0, 0.9, 0.7),
}


def training(steps: int = 4, layers: int = 2, heads: int = 3, max_logit: float = 100.0) -> Result:
    """Return statistics in which the logits of one head grow and the entropy of another falls."""
    arrays = {name: np.full((steps, layers, heads), 0.5) for name in STATISTICS}
    arrays["entropy"] += 2.0 - np.arange(steps)[:, None, None] / steps
    arrays["entropy"][3:, 0, 2] = 0.05
    arrays["max_logit"] += 10.0
    arrays["max_logit"][:, 1, 0] = 60.0 * np.arange(steps)
    bell, at = AlarmBell(max_logit), [1 + 10 * step for step in range(steps)]
    for index, step in enumerate(at):
        bell.check(step, arrays["entropy"][index], arrays["max_logit"][index])
    result = Result(
        kind="training-statistics",
        config={
            "model": "small", "architecture": "Llama", "model_type": "llama", "parameters": 1000,
            "dtype": "float32", "device": "cpu", "notes": [], "every": 10, "rows": 32,
            "layers": [f"model.layers.{layer}.self_attn" for layer in range(layers)],
            "heads": [heads] * layers, "sequences": 4, "max_logit": max_logit, "min_entropy": 0.1,
        },
        seeds=(),
        measurements={"steps": at, "alarms": [alarm.describe() for alarm in bell.alarms]},
        provenance=Stopwatch().provenance(),
    )  # fmt: skip
    return result.with_arrays(**arrays)


def comparison(*conditions: str, seeds: int = 2) -> Result:
    """Return a comparison of trainings; each further seed has one point less."""
    rows: list[dict[str, Any]] = [
        {
            "condition": name,
            "seed": seed,
            "accuracy": [right - 0.01 * seed for right in RIGHT[name]],
            "nats": [1 - right for right in RIGHT[name]],
            "largest_weight": None if "tuned" in name else [0.9, 0.8, RIGHT[name][-1] / 2],
            "final_loss": 0.001,
            "seconds": 30.0,
        }
        for name in conditions
        for seed in range(seeds)
    ]
    result = Result(
        kind="train-normalisers",
        config={
            "layers": 2, "hidden": 128, "heads": 4, "largest": 16, "steps": 100, "batch": 32,
            "texts": 24, "questions": 8, "sizes": SIZES, "sample_every": 50,
        },
        seeds=tuple(range(seeds)),
        measurements={
            "summaries": {name: f"trained with {name}" for name in conditions},
            "rows": rows,
            "statistics": list(STATISTICS),
            "sampled_steps": [0, 50],
        },
        provenance=Stopwatch().provenance(),
    )  # fmt: skip
    shape = (2, 2, 4, len(STATISTICS))
    return result.with_arrays(
        **{f"{row['condition']}-{row['seed']}": np.ones(shape) for row in rows}
    )
