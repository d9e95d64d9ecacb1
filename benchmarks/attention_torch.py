"""Measure the cost of adaptive attention in PyTorch on a CPU, relative to
`F.scaled_dot_product_attention`.

    make bench

Prefill and decoding in float32: time, peak memory, and growth with the number of tokens. The
textbook version, which holds the matrix, is measured too, and so are the two matrix products alone,
at the best speed of the BLAS. Each candidate's answer is checked first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import candidates
import torch
import torch.nn.functional as F  # noqa: N812
from candidates import HEADS, tensors, textbook
from measure import peak_megabytes, print_rise, ratios

from sharpmax.results import Result, Stopwatch
from sharpmax.torch import attention_stats, scaled_dot_product_attention

TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16_384)
DIMS = (64, 128)
ROUNDS = {256: 101, 512: 101, 1024: 41, 2048: 21, 4096: 9, 8192: 5, 16_384: 2}
ALL_UP_TO = 4096
"""With more tokens, plain attention and the textbook, which would not fit, are left out."""
SQUARE = 1536
"""Size of the square matrices whose product measures the best speed of the BLAS."""
DECODE_KEYS = 16_384
DECODE_ROUNDS = 201
MEMORY_TOKENS = 16_384


def prefill(tokens: int, dim: int, causal: bool):
    """Return time ratios of all candidates for one input length."""
    rounds = ROUNDS[tokens]
    calls = candidates.prefill(tokens, dim, causal)
    separate = {"SDPA": calls["SDPA"], "textbook": calls.pop("textbook")}
    if tokens > ALL_UP_TO:
        del calls["plain"]
    left, right = torch.randn(2, SQUARE, SQUARE)
    calls["products alone"] = lambda: left @ right
    share = candidates.work(tokens, dim, causal) / (2 * SQUARE**3)
    measurements = ratios(calls, rounds, share={"products alone": share})
    if tokens <= ALL_UP_TO:
        # Measured separately: freeing its gigabytes slows the next candidate.
        measurements["textbook"] = ratios(separate, max(3, rounds // 4))["textbook"]
    return measurements


def torch_after_ours() -> dict[str, dict[str, float]]:
    """Measure whether a product of torch is as fast after a call of ours as after one of SDPA."""
    query, key, value = tensors(1024, 1024, 64)
    left, right = torch.randn(2, 512, 512)

    def after(call):
        def prepare():
            call()
            return left.sum() + right.sum()  # in the cache again, whatever the call left in it

        return prepare

    before = {
        "after SDPA": after(lambda: F.scaled_dot_product_attention(query, key, value)),
        "after cpu": after(lambda: scaled_dot_product_attention(query, key, value, impl="cpu")),
    }
    return ratios(dict.fromkeys(before, lambda: left @ right), 201, before=before)


def first_call() -> dict[str, float]:
    """Return the seconds of a process's first call, with and without numba's cache.

    Both include importing numba.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "first"]
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        processes = [
            subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            for _ in range(2)
        ]
    compiled, kept = (round(float(done.stdout), 2) for done in processes)
    return {"compiling": compiled, "kept": kept}


def print_first() -> None:
    """Print the seconds of the first call, in a fresh process."""
    query, key, value = tensors(64, 64, 64)
    start = time.perf_counter()
    scaled_dot_product_attention(query, key, value, impl="cpu")
    print(time.perf_counter() - start)


def memory(which: str, tokens: int, heads: int) -> None:
    """Print how much memory one call takes, in a fresh process."""
    query, key, value = tensors(tokens, tokens, 64, heads)
    small = [tensor[:, :, :8] for tensor in (query, key, value)]
    work = {
        "SDPA": lambda *t: F.scaled_dot_product_attention(*t),
        "cpu": lambda *t: scaled_dot_product_attention(*t, impl="cpu"),
        "streaming": lambda *t: scaled_dot_product_attention(*t, impl="streaming"),
        "fused": lambda *t: scaled_dot_product_attention(*t, impl="fused"),
        "statistics": lambda *t: attention_stats(*t[:2], impl="cpu"),
        "textbook": lambda *t: textbook(*t),
    }[which]
    work(*small)  # libraries allocate some memory once
    print_rise(lambda: work(query, key, value))


def measure() -> Result:
    watch = Stopwatch()
    measurements = {"prefill": {}, "decode": {}, "memory": {}}
    for dim, causal in ((dim, causal) for dim in DIMS for causal in (False, True)):
        for tokens in TOKENS:
            name = f"{tokens:,} tokens, head size {dim}{', causal' if causal else ''}"
            measurements["prefill"][name] = prefill(tokens, dim, causal)
            print(
                name, {k: v["ratio"] for k, v in measurements["prefill"][name].items()}, flush=True
            )
    for dim, heads, kv_heads in ((dim, *heads) for dim in DIMS for heads in ((8, 8), (32, 8))):
        name = f"{heads} query heads, {kv_heads} key heads, head size {dim}"
        calls = candidates.decode(DECODE_KEYS, dim, heads, kv_heads)
        measurements["decode"][name] = ratios(calls, DECODE_ROUNDS)
        print(name, {k: v["ratio"] for k, v in measurements["decode"][name].items()}, flush=True)
    for which in ("SDPA", "cpu", "streaming", "fused", "statistics", "textbook"):
        heads = 1 if which == "textbook" else HEADS
        rise = peak_megabytes(__file__, which, str(MEMORY_TOKENS), str(heads))
        measurements["memory"][which] = {"heads": heads, "megabytes": round(rise, 1)}
        print(which, measurements["memory"][which], flush=True)
    measurements["torch_after"] = {"a product of torch's": torch_after_ours()}
    measurements["first_call"] = {"seconds": first_call()}
    print({name: measurements[name] for name in list(measurements)[3:]}, flush=True)
    config = {
        "heads": HEADS,
        "dims": list(DIMS),
        "rounds": {str(tokens): rounds for tokens, rounds in ROUNDS.items()},
        "decode_rounds": DECODE_ROUNDS,
        "threads": torch.get_num_threads(),
        "decode_keys": DECODE_KEYS,
        "memory_tokens": MEMORY_TOKENS,
    }
    return Result(
        kind="bench-torch",
        config=config,
        seeds=(0,),
        measurements=measurements,
        provenance=watch.provenance(),
    )


def main() -> None:
    torch.set_grad_enabled(False)
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["first"]:
        print_first()
    else:
        path = Path(sys.argv[1])
        measure().save(path, overwrite=True)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
