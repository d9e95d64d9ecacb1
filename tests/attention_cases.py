"""Problems that every implementation of attention is given."""

from __future__ import annotations

import numpy as np
import torch

STATS = ("entropy", "log_sum_exp", "max_logit", "min_logit", "count", "inverse_temperature")
SIZES = [(1, 1, 4), (1, 19, 2), (7, 7, 1), (13, 29, 2), (29, 13, 4)]
"""Queries, keys, key heads."""
OPTIONS = [{}, {"softcap": 2.5}, {"sinks": True}, {"scale": 0.2}, {"softcap": 4.0, "sinks": True}]


def make(rng, queries, keys, *, kv_heads=4, dim=8, spread=3.0):
    query = rng.normal(size=(2, 4, queries, dim)) * spread
    key = rng.normal(size=(2, kv_heads, keys, dim))
    value = rng.normal(size=(2, kv_heads, keys, dim))
    return query, key, value


def mask_of(rng, kind, queries, keys):
    """attn_mask, and what it means: which keys are visible, and what is added."""
    if kind == "none":
        return None, {}
    if kind == "bias":
        bias = rng.normal(size=(4, queries, keys))
        bias[:, rng.random((queries, keys)) < 0.3] = -np.inf
        bias[:, 0] = -np.inf
        return torch.tensor(bias), {"bias": bias}
    shape = {"padding": (2, 1, 1, keys), "rows": (queries, keys), "heads": (1, 4, queries, keys)}
    visible = rng.random(shape[kind]) < 0.6
    if kind != "padding":
        visible[..., 0, :] = False
    return torch.tensor(visible), {"visible": visible}
