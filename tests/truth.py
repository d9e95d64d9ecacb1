"""Attention computed one row at a time from the visible keys alone, in NumPy and SciPy.

Slow and literal: hidden keys are left out, not masked. Everything faster is compared with this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.special

import sharpmax as sx


class Truth(NamedTuple):
    """[batch heads query] each; output [batch heads query dim]."""

    output: np.ndarray
    entropy: np.ndarray
    log_sum_exp: np.ndarray
    max_logit: np.ndarray
    min_logit: np.ndarray
    count: np.ndarray
    inverse_temperature: np.ndarray
    varentropy: np.ndarray


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    visible: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    policy: Any = sx.PAPER,
) -> Truth:
    """query [batch heads query dim], key and value [batch kv_heads key dim]."""
    batch, heads, queries, dim = query.shape
    keys, group = key.shape[2], heads // key.shape[1]
    full = (batch, heads, queries, keys)
    seen = np.broadcast_to(True if visible is None else visible, full)
    added = np.broadcast_to(0.0 if bias is None else bias, full)
    rows = full[:3]
    answer = Truth(
        np.zeros((*rows, value.shape[3])),
        np.zeros(rows),
        np.full(rows, -np.inf),
        np.full(rows, -np.inf),
        np.full(rows, np.inf),
        np.zeros(rows, int),
        np.ones(rows),
        np.zeros(rows),
    )
    for place in np.ndindex(rows):
        b, h, i = place
        shown = seen[place] & (added[place] > -np.inf)
        if causal:
            shown = shown & (np.arange(keys) <= i)
        if window is not None:
            shown = shown & (np.abs(np.arange(keys) - i) < window)
        if not shown.any():
            answer.inverse_temperature[place] = policy(0.0, 0)
            continue
        logits = key[b, h // group][shown] @ query[place] * (dim**-0.5 if scale is None else scale)
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        logits = logits + added[place][shown]
        entropy = float(scipy.special.entr(scipy.special.softmax(logits)).sum())
        factor = float(policy(entropy, int(shown.sum())))
        sharp = factor * logits
        if sinks is not None:
            sharp = np.append(sharp, sinks[h])
        weights = scipy.special.softmax(sharp)[: shown.sum()]
        answer.output[place] = weights @ value[b, h // group][shown]
        answer.entropy[place] = entropy
        plain = scipy.special.softmax(logits)
        answer.varentropy[place] = np.average((logits - plain @ logits) ** 2, weights=plain)
        answer.log_sum_exp[place] = scipy.special.logsumexp(logits)
        answer.max_logit[place] = logits.max()
        answer.min_logit[place] = logits.min()
        answer.count[place] = shown.sum()
        answer.inverse_temperature[place] = factor
    return answer
