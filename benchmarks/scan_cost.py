"""Measure a scan: time relative to plain forward passes of the same model, and memory.

    python benchmarks/scan_cost.py results/bench_scan.json

Plain passes and scans run in turns. The run checks the scan's entropies against the matrices of
eager attention, on an input short enough to hold them. Peak memory is that of a fresh process that
only scans.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from measure import peak_gigabytes

import sharpmax.hf as shf
from sharpmax.hf.loading.loader import load
from sharpmax.hf.scan.prompts import choose_prompt
from sharpmax.results import Result, Stopwatch

TOKENS = (2048, 4096, 8192)
CHECKED = 512
ROUNDS = {2048: 5, 4096: 5, 8192: 3}


def plain(model: torch.nn.Module, tokens: list[int]) -> float:
    """Return the seconds of one forward pass."""
    begin = time.perf_counter()
    with torch.no_grad():
        model.base_model(input_ids=torch.tensor([tokens]), use_cache=False)
    return time.perf_counter() - begin


def check(model: torch.nn.Module, tokenizer: object) -> float:
    """Return the largest difference of an entropy from that of eager attention's matrices."""
    scan = shf.scan(model, tokenizer, [CHECKED], "passkey")
    tokens = choose_prompt("passkey", tokenizer).tokens(CHECKED)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        matrices = model(torch.tensor([tokens]), output_attentions=True).attentions
    model.set_attn_implementation(before)
    last = np.stack([matrix[0, :, -1].double() for matrix in matrices])
    entropy = -(last * np.log(np.where(last > 0, last, 1.0))).sum(-1)
    difference = float(np.abs(scan.entropy[0] - entropy).max())
    if difference > 1e-4:
        sys.exit(f"the scan's entropies are off by {difference}; no result was written")
    return difference


def peak_memory(tokens: int) -> float:
    """Return the peak memory in gigabytes of a process that scans once."""
    command = [sys.executable, __file__, "--only-scan", str(tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--only-scan", type=int)
    arguments = parser.parse_args()
    loaded = load()
    model, tokenizer = loaded.model, loaded.tokenizer
    if arguments.only_scan:
        shf.scan(model, tokenizer, [arguments.only_scan], "passkey")
        print(peak_gigabytes())
        return
    watch = Stopwatch()
    difference = check(model, tokenizer)
    rows = []
    for count in TOKENS:
        tokens = choose_prompt("passkey", tokenizer).tokens(count)
        pairs = []
        for _ in range(ROUNDS[count]):
            alone = plain(model, tokens)
            scanned = shf.scan(model, tokenizer, [count], "passkey").measurements["seconds"][0]
            pairs.append((alone, scanned))
        ratios = sorted(scanned / alone for alone, scanned in pairs)
        rows.append(
            {
                "tokens": count,
                "plain_seconds": statistics.median(alone for alone, _ in pairs),
                "scan_seconds": statistics.median(scanned for _, scanned in pairs),
                "ratio": statistics.median(ratios),
                "ratio_range": [ratios[0], ratios[-1]],
                "rounds": len(pairs),
                "peak_gigabytes": peak_memory(count),
            }
        )
        print(rows[-1])
    result = Result(
        kind="bench-scan",
        config={
            "model": loaded.name,
            "checked_tokens": CHECKED,
            "threads": torch.get_num_threads(),
        },
        seeds=(0,),
        measurements={"rows": rows, "largest_difference": difference},
        provenance=watch.provenance(),
    )
    result.save(arguments.out, overwrite=True)


if __name__ == "__main__":
    main()
