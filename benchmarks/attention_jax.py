"""Measure the cost of adaptive attention in JAX relative to `jax.nn.dot_product_attention`.

    make bench

Compiled, on the CPU, in float32: time, and memory of the compiled program. The textbook version,
which holds the matrix, is measured too. Each candidate's answer is checked first.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from measure import ratios

import sharpmax as sx
from sharpmax.jax import attention_stats, dot_product_attention
from sharpmax.results import Result, Stopwatch

HEADS, DIM = 8, 64
TOKENS = (1024, 2048, 4096)
ROUNDS = 9


def textbook(query, key, value, is_causal):
    """Compute it as the paper does: matrix, softmax, entropy with a small constant, softmax."""
    logits = jnp.einsum("bthd,bshd->bhts", query, key) / math.sqrt(query.shape[-1])
    if is_causal:
        tokens = logits.shape[-1]
        logits = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), logits, -jnp.inf)
    weights = jax.nn.softmax(logits)
    entropy = -(weights * jnp.log(weights + 1e-9)).sum(-1, keepdims=True)
    polynomial = jnp.polyval(jnp.array(sx.PAPER.coefficients), entropy)
    factor = jnp.where(entropy > 0.5, jnp.maximum(polynomial, 1.0), 1.0)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits * factor), value)


def measure() -> Result:
    watch = Stopwatch()
    measurements = {"prefill": {}, "memory": {}}
    for tokens in TOKENS:
        for causal in (False, True):
            name = f"{tokens:,} tokens{', causal' if causal else ''}"
            measurements["prefill"][name], measurements["memory"][name] = prefill(tokens, causal)
            print(
                name, {k: v["ratio"] for k, v in measurements["prefill"][name].items()}, flush=True
            )
    return Result(
        kind="bench-jax",
        config={"heads": HEADS, "dim": DIM, "rounds": ROUNDS},
        seeds=(0,),
        measurements=measurements,
        provenance=watch.provenance(),
    )


def prefill(tokens: int, causal: bool):
    """Return time ratios and memory of all candidates for one input length."""
    seeds = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(seed, (1, tokens, HEADS, DIM)) for seed in seeds]
    functions = {
        "jax.nn": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal),
        "ours": lambda q, k, v: dot_product_attention(q, k, v, is_causal=causal),
        "statistics": lambda q, k, v: attention_stats(q, k, is_causal=causal).entropy,
        "textbook": lambda q, k, v: textbook(q, k, v, causal),
    }
    programs = {
        name: jax.jit(function).lower(*arrays).compile() for name, function in functions.items()
    }
    error = jnp.abs(programs["ours"](*arrays) - programs["textbook"](*arrays)).max()
    if not error < 1e-3:
        raise SystemExit(f"ours and the textbook differ by {error}; no result was written")
    calls = {
        name: lambda program=program: program(*arrays).block_until_ready()
        for name, program in programs.items()
    }
    memory = {
        name: round(program.memory_analysis().temp_size_in_bytes / 2**20, 1)
        for name, program in programs.items()
    }
    return ratios(calls, ROUNDS), memory


def main() -> None:
    path = Path(sys.argv[1])
    measure().save(path, overwrite=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
