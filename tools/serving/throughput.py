"""How fast vLLM is with the plugin, relative to stock vLLM in the same run."""

from __future__ import annotations

import os
from contextlib import ExitStack
from statistics import median
from typing import Any

import models
import numpy as np
from engines import Worker

PROCESSES = 3
"""Of each kind. Two processes of stock vLLM may differ by 6 %, more than the plugin costs."""
ROUNDS = 8
MAX_RATIO = 1.05
WORKLOADS = {
    "prefill": ([1024] * 4, 1),
    "generation": ([256] * 8, 64),
}
"""The lengths of the prompts of a batch, and how many tokens are generated after each."""


def throughput(_: Any) -> dict[str, Any]:
    """Time all processes in turns, of which the others wait."""
    options = {
        "model": str(models.plain_folder()),
        "max_model_len": 2048,
        "enable_prefix_caching": False,
    }
    calibration = models.shipped_calibration()
    generator = np.random.default_rng(0)
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                Worker("vllm", f"throughput-{kind}-{number}", calibration=used, **options)
            )
            for number in range(PROCESSES)
            for kind, used in (("stock", None), ("plugin", calibration))
        ]
        versions = workers[0].versions
        for name, (lengths, tokens) in WORKLOADS.items():
            seconds = np.zeros((ROUNDS + 1, len(workers)))
            for turn in range(ROUNDS + 1):
                prompts = [generator.integers(10, 40_000, size=size).tolist() for size in lengths]
                for place in generator.permutation(len(workers)):
                    answer = workers[place].ask(prompts, tokens, "")
                    seconds[turn, place] = answer["seconds"]
            found[name] = compare_times(seconds[1:, 0::2], seconds[1:, 1::2])
            print(f"throughput, {name}: {found[name]}", flush=True)
    slow = {name: part["ratio"] for name, part in found.items() if part["ratio"] > MAX_RATIO}
    if slow:
        raise SystemExit(f"serving: the plugin takes {slow} of stock vLLM's time, over {MAX_RATIO}")
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    return {
        "rounds": ROUNDS,
        "processes": PROCESSES,
        "threads": threads,
        "workloads": found,
        "versions": versions,
    }


def compare_times(stock: np.ndarray, plugin: np.ndarray) -> dict[str, Any]:
    """Return the ratio of two kinds of processes, from their seconds per round and process.

    `stock_spread` is how much longer the slowest process of stock vLLM takes than the fastest: a
    ratio that differs less from 1 is not known to differ.
    """
    ratios = np.median(plugin, axis=1) / np.median(stock, axis=1)
    processes = np.median(stock, axis=0)
    return {
        "stock_seconds": float(np.median(stock)),
        "plugin_seconds": float(np.median(plugin)),
        "ratio": median(ratios.tolist()),
        "quartiles": np.quantile(ratios, [0.25, 0.75]).tolist(),
        "stock_spread": float(processes.max() / processes.min()),
    }
