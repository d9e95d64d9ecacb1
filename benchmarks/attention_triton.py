"""Measure the cost of adaptive attention by the Triton kernels on a GPU, relative to
`F.scaled_dot_product_attention` in the same run, forward and backward.

    python benchmarks/attention_triton.py results/bench_triton.json

Causal self-attention from 1,024 to 65,536 tokens in bfloat16, float16 and float32. Each candidate's
answer and gradients are checked first, against the definition in double precision.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from measure import ratios

import sharpmax as sx
from sharpmax.results import Result, Stopwatch
from sharpmax.torch import attention, attention_stats, scaled_dot_product_attention
from sharpmax.torch.triton.launch import find_modules

HEADS, DIM = 8, 64
TOKENS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LARGEST_ERROR = {"bfloat16": 3e-2, "float16": 5e-3, "float32": 1e-3}
"""Relative to the largest number of the right answer: a few roundings of the type."""
ROUNDS = 15
CHECKED = 64
"""Number of rows that are checked: the last ones, which see almost every key."""


def tensors(tokens: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (1, HEADS, tokens, DIM)
    return [
        torch.randn(shape, generator=generator, device="cuda").to(dtype).requires_grad_()
        for _ in range(3)
    ]


def close(name: str, found: torch.Tensor, expected: torch.Tensor, largest: float) -> None:
    """Exit unless a candidate is right."""
    error = (found.double() - expected).abs().max().item() / expected.abs().max().item()
    if not error < largest:
        raise SystemExit(f"{name} is wrong by {error:.1e} of its size; no result was written")


def check(given: list[torch.Tensor], dtype: str, **options) -> None:
    """Compare output, gradients and entropy of the last rows with the definition."""
    tokens, largest = given[0].shape[2], LARGEST_ERROR[dtype]
    mask = torch.ones(CHECKED, tokens, dtype=torch.bool, device="cuda").tril(tokens - CHECKED)
    wide = [tensor.detach().double() for tensor in given]
    wide[0] = wide[0][:, :, -CHECKED:]
    wide = [tensor.requires_grad_() for tensor in wide]
    expected = attention(*wide, attn_mask=mask, impl="reference", **options)
    truth = torch.autograd.grad(expected.output.square().sum(), wide)
    found = attention(*given, is_causal=True, impl="triton", **options)
    last = found.output[:, :, -CHECKED:]
    gradients = list(torch.autograd.grad(last.float().square().sum(), given))
    gradients[0] = gradients[0][:, :, -CHECKED:]
    close(f"the output at {tokens} tokens, {dtype}", last, expected.output, largest)
    entropy = found.stats.entropy[:, :, -CHECKED:]
    close(f"the entropy at {tokens} tokens, {dtype}", entropy, expected.stats.entropy, 1e-4)
    for name, ours, theirs in zip(("query", "key", "value"), gradients, truth, strict=True):
        close(f"the gradient of the {name} at {tokens}, {dtype}", ours, theirs, 2 * largest)


def candidates(given: list[torch.Tensor]):
    query, key, value = given
    ours = {"is_causal": True, "impl": "triton"}
    return {
        "SDPA": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        "triton": lambda: scaled_dot_product_attention(query, key, value, **ours),
        "triton, softcap": lambda: scaled_dot_product_attention(
            query, key, value, softcap=30.0, **ours
        ),
        "triton, plain": lambda: scaled_dot_product_attention(
            query, key, value, policy=sx.Constant(1.0), **ours
        ),
        "fused": lambda: scaled_dot_product_attention(
            query, key, value, is_causal=True, impl="fused"
        ),
    }


def timed(call):
    """Wait for the GPU, which works on after a call returns."""

    def wait():
        call()
        torch.cuda.synchronize()

    return wait


def row(tokens: int, dtype: str) -> dict[str, dict[str, dict[str, float]]]:
    given = tensors(tokens, TYPES[dtype])
    check(given, dtype)
    check(given, dtype, softcap=30.0)
    calls = candidates(given)
    try:
        calls["fused"]()
    except NotImplementedError as error:
        print(f"left out: {error}")
        del calls["fused"]
    upstream = torch.ones_like(given[0])
    both = {
        name: timed(lambda call=call: torch.autograd.grad(call(), given, upstream))
        for name, call in calls.items()
    }
    forward = {name: timed(call) for name, call in calls.items()}
    forward["statistics"] = timed(
        lambda: attention_stats(given[0], given[1], is_causal=True, impl="triton")
    )
    rounds = max(3, min(ROUNDS, ROUNDS * 16_384 // tokens))
    with torch.no_grad():
        found = {"forward": ratios(forward, rounds)}
    found["forward and backward"] = ratios(both, rounds)
    return found


def measure() -> Result:
    watch = Stopwatch()
    found: dict[str, dict[str, object]] = {}
    for dtype in TYPES:
        found[dtype] = {}
        for tokens in TOKENS:
            found[dtype][str(tokens)] = measured = row(tokens, dtype)
            for way, values in measured.items():
                shown = {name: value["ratio"] for name, value in values.items()}
                print(dtype, tokens, way, shown, flush=True)
    config = {
        "heads": HEADS,
        "dim": DIM,
        "rounds": ROUNDS,
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
    }
    return Result(
        kind="bench-triton",
        config=config,
        seeds=(0,),
        measurements=found,
        provenance=watch.provenance(),
    )


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU to measure")
    if find_modules() is None:
        raise SystemExit("triton is not installed: pip install 'sharpmax[triton]'")
    if len(sys.argv) != 2:
        raise SystemExit("usage: attention_triton.py results/bench_triton.json")
    path = Path(sys.argv[1])
    measure().save(path, overwrite=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
