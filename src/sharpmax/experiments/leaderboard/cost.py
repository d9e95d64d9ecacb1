"""What a training step of each design costs beside one with softmax.

All in one process and in turns, round after round, so that whatever else the machine does falls on
all of them; the ratio is that of the same round, the median over rounds.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from sharpmax.experiments.jobs import Tell
from sharpmax.experiments.leaderboard.entries import BASELINE
from sharpmax.experiments.max_retrieval.settings import LOSS_EVERY, Training
from sharpmax.experiments.max_retrieval.train import State, advance, begin, streams


class Timing(NamedTuple):
    """Designs to time, softmax among them."""

    designs: tuple[str, ...]
    rounds: int = 7


def compare(timing: Timing, tell: Tell = lambda share: None) -> dict[str, Any]:
    """Milliseconds a step and the ratio to softmax, by design."""
    initialising, key = streams(0)
    trainings = {name: Training(design=name, kept_at=()) for name in timing.designs}
    states = {name: begin(initialising, one.kind) for name, one in trainings.items()}
    total = len(states) * (timing.rounds + 1)
    seconds: dict[str, list[float]] = {name: [] for name in states}
    for turn in range(timing.rounds + 1):  # the first one compiles
        steps = np.arange(turn * LOSS_EVERY, (turn + 1) * LOSS_EVERY, dtype=np.int32)
        for place, (name, training) in enumerate(trainings.items()):
            begun = time.perf_counter()
            states[name] = _advanced(states[name], key, steps, training)
            seconds[name].append(time.perf_counter() - begun)
            tell((turn * len(states) + place + 1) / total)
    timed = {name: np.asarray(found[1:]) for name, found in seconds.items()}
    ratios = {name: found / timed[BASELINE] for name, found in timed.items()}
    return {
        "rounds": timing.rounds,
        "milliseconds": {name: 1e3 * float(np.median(v)) / LOSS_EVERY for name, v in timed.items()},
        "ratio": {name: float(np.median(found)) for name, found in ratios.items()},
        "ratio_quartiles": {
            name: [float(value) for value in np.quantile(found, (0.25, 0.75))]
            for name, found in ratios.items()
        },
    }


def _advanced(state: State, key: jax.Array, steps: np.ndarray, training: Training) -> State:
    state, _ = advance(state, key, steps, training.rates(steps), training.kind)
    return jax.block_until_ready(state)
