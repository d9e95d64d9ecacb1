"""Figure 3: the heads of a language model's first block disperse as a sequence grows.

The prompt asks for the maximum of a sequence of numbers; what is measured is the entropy of each
head's attention at the prompt's last token. The paper shows Gemma 2B; any causal model will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sharpmax.results import Result, Stopwatch


@dataclass(frozen=True)
class Config:
    model: str = "smollm2"
    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    """How many numbers the sequence has."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    layer: int = 0
    device: str = "auto"
    dtype: str = "auto"


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    report: Callable[[str], None] | None = None,
) -> Result:
    # Late: reading a config should not wait for a framework.
    from sharpmax import hf
    from sharpmax.hf.loading.loader import load

    watch = Stopwatch()
    loaded = load(config.model, device=config.device, dtype=config.dtype, report=report)
    scans = [
        hf.scan(
            loaded.model, loaded.tokenizer, config.lengths, "max", layers=[config.layer], seed=seed
        )
        for seed in config.seeds
    ]
    entropy = np.stack([scan.entropy[:, 0] for scan in scans])
    measurements: dict[str, Any] = {
        "model": loaded.name,
        "notes": list(loaded.notes),
        "tokens": np.mean([scan.tokens for scan in scans], axis=0),
        "entropy": entropy,  # [seed, length, head]
        "mean_entropy": entropy.mean((0, 2)),
        "seed_spread": entropy.mean(2).std(0, ddof=1) if len(scans) > 1 else [None] * len(entropy),
        "slope": float(np.mean([scan.slopes.mean() for scan in scans])),
    }
    return Result(
        kind="figure3",
        config=asdict(config),
        seeds=config.seeds,
        measurements=measurements,
        provenance=watch.provenance(),
    )
