"""What adaptive attention in PyTorch costs, as a ratio to `F.scaled_dot_product_attention`.

    make bench

Prefill and decoding on the CPU in float32: time, peak memory, and growth with the number of tokens,
beside the textbook version that holds the matrix. Each candidate's answer is checked first.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from measure import peak_megabytes, print_rise, ratios

import sharpmax as sx
from sharpmax.results import Result, Stopwatch
from sharpmax.torch import attention_stats, scaled_dot_product_attention

HEADS, DIM = 8, 64
PREFILL = (2048, 4096)
GROWTH = (256, 512, 1024, 2048, 4096, 8192)
TEXTBOOK_UP_TO = 4096
MEMORY_TOKENS = 16_384
DECODE_KEYS = 16_384
ROUNDS = 15


def textbook(query, key, value, is_causal=False):
    """What public ports do: the matrix, softmax, entropy with a small constant, softmax again."""
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


def tensors(queries: int, keys: int, heads: int = HEADS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, n, DIM, generator=generator) for n in (queries, keys, keys)]


def check(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """A speed is reported only for the right answer."""
    error = (found - expected).abs().max().item()
    if not error < 1e-3:
        raise SystemExit(f"{name} is wrong by {error}: nothing is reported")


def exact(query, key, value, is_causal, rows=slice(0, 64)):
    """The first rows in double precision by the readable version."""
    return scaled_dot_product_attention(
        query[:, :, rows].double(),
        key.double(),
        value.double(),
        is_causal=is_causal,
        impl="reference",
    )


def prefill(tokens: int, causal: bool, rounds: int, with_textbook: bool = True):
    query, key, value = tensors(tokens, tokens)
    candidates = {
        "SDPA": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    }
    for impl in ("auto", "streaming", "fused"):
        candidates[impl] = lambda impl=impl: scaled_dot_product_attention(
            query, key, value, is_causal=causal, impl=impl
        )
    expected = exact(query, key, value, causal)
    for name in list(candidates)[1:]:
        check(name, candidates[name]()[:, :, :64].double(), expected)
    candidates["statistics"] = lambda: attention_stats(query, key, is_causal=causal)
    candidates["log-length policy"] = lambda: scaled_dot_product_attention(
        query, key, value, is_causal=causal, policy=sx.LogLength(512), impl="fused"
    )
    entropy = attention_stats(
        query[:, :, :64].double(), key.double(), is_causal=causal, impl="reference"
    ).entropy
    check("statistics", candidates["statistics"]().entropy[:, :, :64].double(), entropy)
    found = ratios(candidates, rounds)
    if with_textbook:
        # Apart: what it frees, gigabytes, slows whatever runs next.
        alone = {
            "SDPA": candidates["SDPA"],
            "textbook": lambda: textbook(query, key, value, causal),
        }
        check("textbook", alone["textbook"]()[:, :, :64].double(), expected)
        found["textbook"] = ratios(alone, max(3, rounds // 3))["textbook"]
    return found


def decode(heads: int, kv_heads: int, rounds: int):
    query = tensors(1, 1, heads)[0]
    _, key, value = tensors(1, DECODE_KEYS, kv_heads)
    candidates = {
        "SDPA": lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
        "auto": lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True),
        "statistics": lambda: attention_stats(query, key, enable_gqa=True),
    }
    wide = scaled_dot_product_attention(
        query.double(), key.double(), value.double(), enable_gqa=True, impl="reference"
    )
    check("decode", candidates["auto"]().double(), wide)
    return ratios(candidates, rounds)


def memory(which: str, tokens: int, heads: int) -> None:
    query, key, value = tensors(tokens, tokens, heads)
    small = [tensor[:, :, :8] for tensor in (query, key, value)]
    work = {
        "SDPA": lambda *t: F.scaled_dot_product_attention(*t),
        "auto": lambda *t: scaled_dot_product_attention(*t),
        "streaming": lambda *t: scaled_dot_product_attention(*t, impl="streaming"),
        "fused": lambda *t: scaled_dot_product_attention(*t, impl="fused"),
        "statistics": lambda *t: attention_stats(*t[:2]),
        "textbook": lambda *t: textbook(*t),
    }[which]
    work(*small)  # what libraries allocate once is not the method's
    print_rise(lambda: work(query, key, value))


def measure(rounds: int) -> Result:
    watch = Stopwatch()
    found = {"prefill": {}, "decode": {}, "growth": {}, "memory": {}}
    for tokens in PREFILL:
        for causal in (False, True):
            name = f"{tokens:,} tokens{', causal' if causal else ''}"
            found["prefill"][name] = prefill(tokens, causal, rounds)
            print(name, {k: v["ratio"] for k, v in found["prefill"][name].items()}, flush=True)
    for heads, kv_heads in ((8, 8), (32, 8)):
        name = f"{heads} query heads, {kv_heads} key heads"
        found["decode"][name] = decode(heads, kv_heads, 12 * rounds)
        print(name, {k: v["ratio"] for k, v in found["decode"][name].items()}, flush=True)
    for tokens in GROWTH:
        few = max(3, rounds * 512 // tokens)
        found["growth"][str(tokens)] = prefill(tokens, True, few, tokens <= TEXTBOOK_UP_TO)
    for which, heads in (
        ("SDPA", 8),
        ("auto", 8),
        ("fused", 8),
        ("statistics", 8),
        ("textbook", 1),
    ):
        rise = peak_megabytes(__file__, which, str(MEMORY_TOKENS), str(heads))
        found["memory"][which] = {"heads": heads, "megabytes": round(rise, 1)}
        print(which, found["memory"][which], flush=True)
    config = {
        "heads": HEADS,
        "dim": DIM,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "decode_keys": DECODE_KEYS,
        "memory_tokens": MEMORY_TOKENS,
    }
    return Result(
        kind="bench-torch",
        config=config,
        seeds=(0,),
        measurements=found,
        provenance=watch.provenance(),
    )


def main() -> None:
    torch.set_grad_enabled(False)
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    path = Path(sys.argv[1])
    measure(ROUNDS).save(path, overwrite=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
