"""Plain words for what a head does as its input grows.

Thresholds are conventions, the same for every model, printed with every result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

UNIFORM = 0.9
SINK = 0.5
DISPERSES = 0.5

RULES = {
    "local": "it sees a window and not the whole input, so that adding tokens adds none to it",
    "sink": f"at the longest input it rests on the first token: {SINK:g} or more of its weight",
    "uniform": f"its entropy is {UNIFORM:g} or more of the most possible at every length: it "
    "averages, and never was sharp",
    "disperses": f"its entropy grows by {DISPERSES:g} nats or more for each nat of log n: the "
    f"tokens it is spread over grow like n to the power of {DISPERSES:g} or faster",
    "stays sharp": f"its entropy grows by less than {DISPERSES:g} nats for each nat of log n",
    "unknown": "there is only one length, so nothing can be said of growth",
}
"""When a head gets a label; the first that fits counts."""


def slopes(
    entropy: Float[np.ndarray, "length layer head"], count: Int[np.ndarray, "length layer head"]
) -> Float[np.ndarray, "layer head"]:
    """Growth of entropy in nats for each nat of log n, n = visible tokens, by least squares; NaN
    where n does not change.
    """
    logs = np.log(np.maximum(count, 1))
    logs = logs - logs.mean(0)
    power = (logs**2).sum(0)
    covered = (logs * (entropy - entropy.mean(0))).sum(0)
    return np.where(power > 1e-12, covered / np.where(power > 1e-12, power, 1.0), np.nan)


def label(
    normalised: Float[np.ndarray, " length"],
    sink: Float[np.ndarray, " length"],
    slope: float,
    *,
    local: bool,
) -> str:
    """The label of one head; see `RULES`."""
    if local:
        return "local"
    if sink[-1] >= SINK:
        return "sink"
    if normalised.min() >= UNIFORM:
        return "uniform"
    if np.isnan(slope):
        return "unknown"
    return "disperses" if slope >= DISPERSES else "stays sharp"


def all_labels(
    arrays: dict[str, np.ndarray], local: Bool[np.ndarray, "layer head"]
) -> list[list[str]]:
    """Of the last position; empty where a layer has fewer heads."""
    normalised, sink = arrays["last_normalised_entropy"], arrays["last_sink"]
    return [
        [
            label(
                normalised[:, layer, head],
                sink[:, layer, head],
                float(arrays["slopes"][layer, head]),
                local=bool(local[layer, head]),
            )
            if arrays["last_count"][-1, layer, head] > 0
            else ""
            for head in range(local.shape[1])
        ]
        for layer in range(local.shape[0])
    ]
