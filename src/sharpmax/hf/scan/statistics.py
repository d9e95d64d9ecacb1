"""What one attention layer does with an input, head by head, without a matrix of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sharpmax.hf.patch.attention import PLAIN
from sharpmax.torch import (
    AttentionStats,
    attention,
    attention_stats,
    scaled_dot_product_attention,
)

if TYPE_CHECKING:
    from jaxtyping import Float

STATISTICS = (
    "entropy",
    "normalised_entropy",
    "effective_tokens",
    "max_weight",
    "sink",
    "spread",
)

OF_LOGITS = ("key", "attn_mask", "is_causal", "scale", "enable_gqa", "softcap", "window")
"""The arguments that, with the queries, decide the logits."""


@dataclass(frozen=True)
class Seen:
    """Statistics of a layer's heads, [head], of the last position and averaged over positions."""

    last: dict[str, np.ndarray]
    mean: dict[str, np.ndarray]
    count: np.ndarray
    """Tokens that the last position sees."""


def observe(arguments: dict[str, Any], heads: list[int] | None) -> tuple[Tensor, Seen]:
    """The layer's output, sharpened or not as its policy says, and what its heads did.

    Of a sharpened layer the statistics are those of the sharpened weights.
    """
    plain = arguments["policy"] == PLAIN
    if plain and heads is None:
        output, stats = attention(**arguments)
        return output, _summary(stats, arguments)
    if plain:
        output = scaled_dot_product_attention(**arguments)
    else:
        output, stats = attention(**arguments)
        arguments = _sharpened(arguments, stats.inverse_temperature)
    some = arguments if heads is None else _of_heads(arguments, heads)
    return output, _summary(_statistics(some), some)


def _statistics(arguments: dict[str, Any]) -> AttentionStats:
    some = {name: arguments[name] for name in OF_LOGITS if name in arguments}
    return attention_stats(arguments["query"], policy=PLAIN, **some)


def _sharpened(arguments: dict[str, Any], factor: Float[Tensor, "b h q"]) -> dict[str, Any]:
    """The same attention as a plain one, its queries scaled."""
    mask = arguments.get("attn_mask")
    if arguments["softcap"] is not None or (mask is not None and mask.dtype != torch.bool):
        raise NotImplementedError(
            "statistics of sharpened weights need logits that are plain products of queries and "
            "keys; this layer has a softcap or a bias: scan it without a policy"
        )
    query = arguments["query"]
    return {**arguments, "query": (query * factor[..., None]).to(query.dtype), "policy": PLAIN}


def _of_heads(arguments: dict[str, Any], heads: list[int]) -> dict[str, Any]:
    query, key = arguments["query"], arguments["key"]
    group = query.shape[1] // key.shape[1]
    found = {
        **arguments,
        "query": query[:, heads],
        "key": key[:, [head // group for head in heads]],
    }
    mask = arguments.get("attn_mask")
    if mask is not None and mask.shape[1] > 1:
        found["attn_mask"] = mask[:, heads]
    if arguments["sinks"] is not None:
        found["sinks"] = arguments["sinks"][heads]
    return found


def _summary(stats: AttentionStats, arguments: dict[str, Any]) -> Seen:
    """One prompt's rows, [1, head, query], as numbers of each head."""
    total, count = stats.log_sum_exp, stats.count
    many = count.double()
    rows = {
        "entropy": stats.entropy,
        "normalised_entropy": torch.where(count > 1, stats.entropy / many.log(), torch.nan),
        "effective_tokens": stats.effective_items,
        "max_weight": stats.max_weight,
        "sink": torch.where(count > 0, (_first(arguments) - total).exp(), 0.0),
        "spread": stats.spread,
    }
    if arguments["sinks"] is not None:
        rows["learned_sink"] = torch.sigmoid(arguments["sinks"].to(total.dtype)[:, None] - total)
    numbers = {name: row[0].double().cpu().numpy() for name, row in rows.items()}
    return Seen(
        last={name: row[:, -1] for name, row in numbers.items()},
        mean={name: _mean(row) for name, row in numbers.items()},
        count=count[0, :, -1].cpu().numpy(),
    )


def _first(arguments: dict[str, Any]) -> Float[Tensor, "b h q"]:
    """Each row's logit of the first token; -inf where it is hidden."""
    mask = arguments.get("attn_mask")
    first = {**arguments, "key": arguments["key"][:, :, :1]}
    if mask is not None:
        first["attn_mask"] = mask[..., :1]
    return _statistics(first).log_sum_exp


def _mean(rows: np.ndarray) -> np.ndarray:
    """Over positions; one that sees a single token has no normalised entropy and is left out."""
    known = ~np.isnan(rows)
    number = known.sum(-1)
    total = np.where(known, rows, 0.0).sum(-1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)
