"""How fast vLLM is with the plugin, relative to stock vLLM in the same run."""

from __future__ import annotations

import os
from statistics import median
from typing import Any

import models
import numpy as np
from engines import Worker

ROUNDS = 15
MAX_RATIO = 1.05
WORKLOADS = {
    "prefill": ([1024] * 4, 1),
    "generation": ([256] * 8, 64),
}
"""The lengths of the prompts of a batch, and how many tokens are generated after each."""


def throughput(_: Any) -> dict[str, Any]:
    """Time both in turns; they are two processes, of which one waits."""
    options = {
        "model": str(models.plain_folder()),
        "max_model_len": 2048,
        "enable_prefix_caching": False,
    }
    calibration = models.shipped_calibration()
    generator = np.random.default_rng(0)
    found: dict[str, Any] = {}
    with (
        Worker("vllm", "throughput-stock", **options) as stock,
        Worker("vllm", "throughput-plugin", calibration=calibration, **options) as plugin,
    ):
        for name, (lengths, tokens) in WORKLOADS.items():
            times: dict[str, list[float]] = {"stock": [], "plugin": []}
            for turn in range(ROUNDS + 1):
                prompts = [generator.integers(10, 40_000, size=size).tolist() for size in lengths]
                pair = [("stock", stock), ("plugin", plugin)]
                for who, worker in pair if turn % 2 else pair[::-1]:
                    seconds = worker.ask(prompts, tokens, "")["seconds"]
                    if turn:  # the first turn warms up
                        times[who].append(seconds)
            ratios = np.array(times["plugin"]) / np.array(times["stock"])
            found[name] = {
                "stock_seconds": median(times["stock"]),
                "plugin_seconds": median(times["plugin"]),
                "ratio": float(np.median(ratios)),
                "quartiles": np.quantile(ratios, [0.25, 0.75]).tolist(),
            }
            print(f"throughput, {name}: {found[name]}", flush=True)
    slow = {name: part["ratio"] for name, part in found.items() if part["ratio"] > MAX_RATIO}
    if slow:
        raise SystemExit(f"serving: the plugin takes {slow} of stock vLLM's time, over {MAX_RATIO}")
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    return {"rounds": ROUNDS, "threads": threads, "workloads": found, "versions": stock.versions}
