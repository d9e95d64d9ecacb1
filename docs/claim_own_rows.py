"""What we say beyond the paper: each claim with the result that has its number."""

from __future__ import annotations

from functools import partial

import claim_costs as costs
import claim_numbers as numbers
import clrs_results
from claim_rows import Claim

CLRS = "sharpmax clrs evaluate build/clrs/test --trained build/clrs/models"

OURS = (
    Claim(
        "What softmax loses is ranking more than dispersion, % of the sets",
        "max_retrieval.md#where-the-lost-answers-went",
        "table1.json",
        "sharpmax reproduce table1",
        numbers.ranking,
    ),
    Claim(
        "Which of the paper's unknown settings gives its Table 1",
        "max_retrieval.md#what-is-not-known-tried",
        "unknowns.json",
        "sharpmax reproduce unknowns",
        numbers.unknowns,
    ),
    Claim(
        "log n / log 16 sharpens better than the paper's polynomial, %",
        "max_retrieval.md#other-policies-and-a-task-on-which-sharpening-must-hurt",
        "policies.json",
        "sharpmax reproduce policies",
        numbers.policies,
    ),
    Claim(
        "Leaderboard: the best of each track, maximum of 16,384 items, %",
        "leaderboard.md",
        "leaderboard.json",
        "sharpmax leaderboard",
        numbers.best,
    ),
    Claim(
        "A head that saw at most 16 items finds the maximum of 16,384, %",
        "leaderboard.md#with-three-times-the-steps",
        "long/leaderboard.json",
        "sharpmax leaderboard --steps 15000 --track augmented --track augmented-drop-in",
        numbers.best,
        brief=True,
    ),
    Claim(
        "A small Gemma learns CLRS-Text: exact match at the sizes trained at, ordinary softmax",
        "clrs.md#our-results",
        "figure8.json",
        CLRS,
        clrs_results.inside,
    ),
    Claim(
        "Figure 8 with that Gemma trained from scratch, beyond these sizes",
        "clrs.md#our-results",
        "figure8.json",
        CLRS,
        clrs_results.beyond,
    ),
    Claim(
        "Few heads of SmolLM2 are worth sharpening, by answers",
        "evaluate.md#calibrate",
        "calibration-answers.json",
        "sharpmax calibrate smollm2 --task lookup",
        numbers.calibrated,
    ),
    Claim(
        "The same, by entropy",
        "evaluate.md#calibrate",
        "calibration-entropy.json",
        "sharpmax calibrate smollm2 --task lookup --choose entropy",
        numbers.calibrated,
    ),
    *(
        Claim(
            f"Calibrated sharpening answers lookups among {length} names",
            "evaluate.md#what-it-does-to-smollm2",
            "evaluate_lookup.json",
            "sharpmax evaluate smollm2 --policy results/calibration-answers.json",
            partial(numbers.answered, arm="calibration-answers", length=length),
            brief=length == 32,
        )
        for length in (32, 64)
    ),
    *(
        Claim(
            f"It loses no passkey among {length:,} tokens",
            "evaluate.md#what-it-does-to-smollm2",
            f"{folder}evaluate_passkey.json",
            "sharpmax evaluate smollm2 --task passkey --policy results/calibration-answers.json",
            partial(numbers.answered, arm="calibration-answers", length=length),
        )
        for folder, length in (("", 1024), ("long/", 2048))
    ),
    Claim(
        "What SmolLM2's heads do as its input grows",
        "models.md#scan",
        "scan.json",
        "sharpmax scan",
        numbers.scanned,
    ),
    Claim(
        "A scan, as a ratio to a plain pass of the model",
        "benchmarks.md#scan",
        "bench_scan.json",
        "python benchmarks/scan_cost.py results/bench_scan.json",
        costs.scan_cost,
    ),
    *(
        Claim(
            text,
            "benchmarks.md",
            "bench_torch.json",
            "python benchmarks/attention_torch.py results/bench_torch.json",
            ours,
            brief=brief,
        )
        for text, ours, brief in (
            ("Adaptive attention for PyTorch on a CPU", costs.torch_prefill, True),
            ("The same, one token more", costs.torch_decode, False),
            ("The same, memory without a matrix", costs.torch_memory, False),
        )
    ),
    Claim(
        "Adaptive attention for JAX on a CPU",
        "benchmarks.md#jax-prefill",
        "bench_jax.json",
        "python benchmarks/attention_jax.py results/bench_jax.json",
        costs.jax_prefill,
    ),
    Claim(
        "Max retrieval trains faster than as written",
        "benchmarks.md#max-retrieval",
        "bench_max_retrieval.json",
        "python benchmarks/max_retrieval.py results/bench_max_retrieval.json",
        costs.head_training,
    ),
)
