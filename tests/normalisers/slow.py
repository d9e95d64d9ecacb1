"""Each normaliser on one row of visible items, literally and in float64; all else is compared with it.

Nothing here is masked, shifted or shared with the library: hidden items are left out by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.optimize
import scipy.special

import sharpmax as sx
from sharpmax import normalisers

Row = np.ndarray


def softmax(row: Row) -> Row:
    return scipy.special.softmax(row)


def adaptive_temperature(row: Row) -> Row:
    entropy = scipy.special.entr(softmax(row)).sum()
    return softmax(sx.PAPER(float(entropy), row.size) * row)


def scalable_softmax(row: Row, scale: float = 0.43, bias: float = 0.0) -> Row:
    powers = float(row.size) ** (scale * (row - row.max())) * np.exp(bias * (row - row.max()))
    return powers / powers.sum()


def softmax_plus_one(row: Row, sink: float = 0.0) -> Row:
    return np.exp(row) / (math.exp(sink) + np.exp(row).sum())


def query_aware_scalable_softmax(row: Row, scale=0.43, bias=0.0, modulation=0.0) -> Row:
    return softmax((scale * math.log(row.size) + bias) * (1 + math.tanh(modulation)) * row)


def softpick(row: Row) -> Row:
    shift = max(row.max(), 0.0)  # 65504 is a logit in half precision
    lowered = np.exp(row - shift) - np.exp(-shift)
    if shift < 1:
        lowered = np.expm1(row)
    total = np.abs(lowered).sum()
    return np.maximum(lowered, 0) / total if total else np.zeros(row.size)


def scale_invariant(row: Row, tau: float = 10.0) -> Row:
    distance = np.arange(row.size)[::-1]
    a_squared = 2 * np.log(distance / tau + 1) + 1
    return softmax(np.sqrt(a_squared) * row + 1 - a_squared)


def entmax(row: Row, alpha: float = 1.5) -> Row:
    def weights(tau: float) -> Row:
        return np.maximum((alpha - 1) * row - tau, 0) ** (1 / (alpha - 1))

    top = (alpha - 1) * row.max()
    tau = scipy.optimize.brentq(lambda t: weights(t).sum() - 1, top - 1.1, top, xtol=1e-15)
    return weights(tau)


def adaptive_scalable_entmax(row: Row, offset=1.0, scale=1.0, exponent=1.0) -> Row:
    factor = offset + (scale * math.log(row.size) ** exponent if row.size > 1 else 0.0)
    return entmax(factor * row)


def top_k(row: Row, k: int = 8) -> Row:
    kept = np.argsort(-row, kind="stable")[:k]
    weights = np.zeros(row.size)
    weights[kept] = softmax(row[kept])
    return weights


def hard(row: Row) -> Row:
    return (np.arange(row.size) == row.argmax()).astype(float)


def local(row: Row, window: int = 8) -> Row:
    outside = max(row.size - window, 0)
    return np.append(np.zeros(outside), softmax(row[outside:]))


def sigmoid(row: Row, bias: float = 0.0) -> Row:
    return 1 / (1 + row.size * np.exp(-row - bias))


def relu(row: Row) -> Row:
    return np.maximum(row, 0) / row.size


def linear(row: Row) -> Row:
    return row / row.size


def positive_linear(row: Row) -> Row:
    features = np.where(row > 0, row + 1, np.exp(np.minimum(row, 0)))
    return features / features.sum()


def stick_breaking(row: Row) -> Row:
    weights, left = np.zeros(row.size), 1.0
    for place in reversed(range(row.size)):
        share = 1 / (1 + math.exp(-row[place]))
        weights[place] = left * share
        left *= 1 / (1 + math.exp(row[place]))
    return weights


def stieltjes(row: Row, power: float = 1.0, scale: float = 0.0, bias: float = 1.0) -> Row:
    x = (scale * math.log(row.size) + bias) * row

    def weights(above: float) -> Row:
        return (above + x.max() - x) ** -power

    most = row.size ** (1 / power) * (1 + 1e-12)
    above = scipy.optimize.brentq(lambda a: weights(a).sum() - 1, 1 - 1e-12, most, xtol=1e-15)
    return weights(above)


def threshold_relative(row: Row, slope: float = 0.0) -> Row:
    kept = np.flatnonzero(row > 0)
    weights = np.zeros(row.size)
    if kept.size:
        weights[kept] = softmax(row[kept] - slope * np.arange(kept.size)[::-1])
    return weights


SLOW: dict[str, Callable[[Row], Row]] = {
    "softmax": softmax,
    "adaptive-temperature": adaptive_temperature,
    "scalable-softmax": scalable_softmax,
    "query-aware-scalable-softmax": query_aware_scalable_softmax,
    "softmax-plus-one": softmax_plus_one,
    "softpick": softpick,
    "sparsemax": lambda row: entmax(row, 2.0),
    "entmax": entmax,
    "adaptive-scalable-entmax": adaptive_scalable_entmax,
    "top-k": top_k,
    "hard": hard,
    "local": local,
    "scale-invariant": scale_invariant,
    "sigmoid": sigmoid,
    "relu": relu,
    "linear": linear,
    "positive-linear": positive_linear,
    "stick-breaking": stick_breaking,
    "stieltjes": stieltjes,
    "threshold-relative": threshold_relative,
}

QUICKLY = {"xla_backend_optimization_level": 0}
"""For `jax.jit`: the same fused program in plainer machine code, compiled in half the time."""

ROWS = {name: normalisers.NORMALISERS[name] for name in SLOW}
"""Those that are functions of one row; the others have tests of their own."""


def by_row(function: Callable[[Row], Row], logits: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The function of each row's visible items along the last axis, 0 for the others."""
    answer = np.zeros(logits.shape)
    for place in np.ndindex(logits.shape[:-1]):
        kept = where[place]
        if kept.any():
            answer[place][kept] = function(logits[place][kept])
    return answer
