"""The attention functions that the benchmarks compare, and a check that they agree."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812

import sharpmax as sx
from sharpmax.torch import attention_stats, scaled_dot_product_attention

HEADS = 8
CHECKED = 64
"""Number of last rows that are compared with the definition in double precision."""


def tensors(queries: int, keys: int, dim: int, heads: int = HEADS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, n, dim, generator=generator) for n in (queries, keys, keys)]


def textbook(query, key, value, is_causal=False):
    """Compute it as public ports do: matrix, softmax, entropy with a small constant, softmax."""
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    if is_causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(hidden, -math.inf)
    weights = torch.softmax(logits, -1)
    entropy = -(weights * torch.log(weights + 1e-9)).sum(-1, keepdim=True)
    polynomial = torch.zeros_like(entropy)
    for coefficient in sx.PAPER.coefficients:
        polynomial = polynomial * entropy + coefficient
    factor = torch.where(entropy > 0.5, polynomial.clamp(min=1.0), 1.0)
    return torch.softmax(logits * factor, -1) @ value


def work(tokens: int, dim: int, causal: bool) -> int:
    """Return the operations of the two matrix products of any exact attention."""
    return 4 * HEADS * tokens**2 * dim // (2 if causal else 1)


def prefill(tokens: int, dim: int, causal: bool):
    """Return the candidates for prefill by name; the first is the baseline."""
    query, key, value = tensors(tokens, tokens, dim)
    given = {"is_causal": causal}
    calls = {
        "SDPA": lambda: F.scaled_dot_product_attention(query, key, value, **given),
    }
    for impl in ("cpu", "streaming", "fused"):
        calls[impl] = lambda impl=impl: scaled_dot_product_attention(
            query, key, value, impl=impl, **given
        )
    calls["statistics"] = lambda: attention_stats(query, key, impl="cpu", **given)
    calls["plain"] = lambda: scaled_dot_product_attention(
        query, key, value, policy=sx.Constant(1.0), impl="cpu", **given
    )
    calls["textbook"] = lambda: textbook(query, key, value, causal)
    _check_prefill(calls, (query, key, value), causal)
    return calls


def _check_prefill(calls, given, causal: bool) -> None:
    query, key, value = (tensor.double() for tensor in given)
    tokens = key.shape[2]
    mask = torch.ones(CHECKED, tokens, dtype=torch.bool)
    if causal:
        mask = mask.tril(tokens - CHECKED)
    rows = {"attn_mask": mask, "impl": "reference"}
    last = query[:, :, -CHECKED:]
    expected = scaled_dot_product_attention(last, key, value, **rows)
    names = ["cpu", "streaming", "fused"] + (["textbook"] if tokens <= 2048 else [])
    for name in names:
        check(name, calls[name]()[:, :, -CHECKED:], expected)
    entropy = attention_stats(last, key, **rows).entropy
    check("statistics", calls["statistics"]().entropy[:, :, -CHECKED:], entropy)
    plain = scaled_dot_product_attention(last, key, value, policy=sx.Constant(1.0), **rows)
    for name in ("plain", "SDPA"):
        check(name, calls[name]()[:, :, -CHECKED:], plain)


def decode(keys: int, dim: int, heads: int, kv_heads: int):
    """Return the candidates for decoding, one query over many keys, by name."""
    query = tensors(1, 1, dim, heads)[0]
    _, key, value = tensors(1, keys, dim, kv_heads)
    given = {"enable_gqa": True}
    calls = {"SDPA": lambda: F.scaled_dot_product_attention(query, key, value, **given)}
    for impl in ("cpu", "streaming"):
        calls[impl] = lambda impl=impl: scaled_dot_product_attention(
            query, key, value, impl=impl, **given
        )
    calls["statistics"] = lambda: attention_stats(query, key, impl="cpu", **given)
    wide = scaled_dot_product_attention(
        query.double(), key.double(), value.double(), impl="reference", **given
    )
    for name in ("cpu", "streaming"):
        check(name, calls[name](), wide)
    return calls


def check(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Exit unless a candidate is right."""
    error = (found.double() - expected).abs().max().item()
    if not error < 1e-3:
        raise SystemExit(f"{name} is wrong by {error}; no result was written")
