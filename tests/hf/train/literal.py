"""The logits of a model's attention, caught where eager attention takes their softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from sharpmax.hf.patch.layers import attention_layers

Weigh = Callable[[torch.nn.Module, Tensor, Tensor], Tensor]


@contextmanager
def eager_logits(model: PreTrainedModel, weigh: Weigh | None = None) -> Iterator[dict]:
    """Collect the first logits of each layer [batch, head, query, key], hidden ones as -inf.

    Args:
        model: A model with eager attention.
        weigh: Called with the layer, its logits and a mask of the visible ones; what it returns
            takes the place of the weights.
    """
    caught: dict[int, Tensor] = {}
    inside: list[Any] = []
    hooks = []
    for layer in attention_layers(model):
        assert layer.module.config._attn_implementation == "eager"
        hooks += [
            layer.module.register_forward_pre_hook(lambda *_, layer=layer: inside.append(layer)),
            layer.module.register_forward_hook(lambda *_: inside.pop() and None),
        ]
    plain = functional.softmax

    def softmax(logits: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if not inside or logits.ndim != 4:
            return plain(logits, *arguments, **options)
        layer = inside[-1]
        visible = logits > torch.finfo(logits.dtype).min / 2
        known = logits.detach().double().masked_fill(~visible, -torch.inf)
        sinks = getattr(layer.module, "sinks", None)
        if sinks is not None:  # the last column; gpt-oss has lowered the whole row
            lowered = sinks.detach().double()[:, None, None] - known[..., -1:]
            known = known[..., :-1] + lowered
        caught.setdefault(layer.index, known)
        if weigh is not None:
            return weigh(layer.module, logits, visible).to(logits.dtype)
        return plain(logits, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "softmax", softmax)
        patch.setattr(torch, "softmax", softmax)
        yield caught
    for hook in hooks:
        hook.remove()


def literal_statistics(logits: Tensor, real: Tensor, first: Tensor) -> dict[str, np.ndarray]:
    """Return the statistics of one layer per head, from a loop over its rows.

    Args:
        logits: Its logits, in float64, -inf where hidden.
        real: Which rows count, [batch, query].
        first: The position of the first token of each sequence.
    """
    found: dict[str, list[list[float]]] = {}
    for head in range(logits.shape[1]):
        rows: dict[str, list[float]] = {}
        for sequence in range(logits.shape[0]):
            for query in range(logits.shape[2]):
                row = logits[sequence, head, query].numpy()
                seen = row[np.isfinite(row)]
                if not real[sequence, query] or not len(seen):
                    continue
                weights = np.exp(row - seen.max()) / np.exp(seen - seen.max()).sum()
                surprise = -np.log(weights[weights > 0])
                entropy = float((weights[weights > 0] * surprise).sum())
                values = {
                    "entropy": entropy,
                    "varentropy": float(weights[weights > 0] @ (surprise - entropy) ** 2),
                    "max_logit": float(seen.max()),
                    "max_weight": float(weights.max()),
                    "first_share": float(weights[first[sequence]]),
                }
                for name, value in values.items():
                    rows.setdefault(name, []).append(value)
        for name, values in rows.items():
            found.setdefault(name, []).append(
                max(values) if name == "max_logit" else float(np.mean(values))
            )
    return {name: np.array(values) for name, values in found.items()}
