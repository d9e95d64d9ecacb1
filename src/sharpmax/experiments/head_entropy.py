"""Figure 3: attention heads in the first block of a language model disperse as a sequence grows.

The prompt asks for the maximum of a sequence of numbers. We measure the entropy of each head's
attention at the last token of the prompt. The paper shows Gemma 2B; any causal model will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sharpmax.results import Result, Stopwatch

__all__ = ["Config", "run"]


@dataclass(frozen=True)
class Config:
    """Settings of Figure 3."""

    model: str = "smollm2"
    """Name, folder or GGUF file of a causal language model, as in `sharpmax.hf.load`."""
    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    """How many numbers the sequence has."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the random numbers in the prompts."""
    layer: int = 0
    """Number of the layer whose heads are measured."""
    device: str = "auto"
    """Device that runs the model."""
    dtype: str = "auto"
    """Data type of the model's weights."""


def run(
    config: Config = Config(),  # noqa: B008 - frozen, so sharing the default is safe
    report: Callable[[str], None] | None = None,
) -> Result:
    """Measure the entropy of every head in one layer at each sequence length.

    Args:
        config: The model, the lengths and the seeds.
        report: Called with messages about loading the model.

    Returns:
        A result of kind `figure3`; `entropy` has the axes seed, length, head.

    Raises:
        UserError: If the model cannot be loaded or scanned.
    """
    # Imported here so that reading a config does not import a framework.
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
    entropy = np.stack([scan.entropy[:, 0] for scan in scans])  # [seed, length, head]
    several = len(scans) > 1
    measurements: dict[str, Any] = {
        "model": loaded.name,
        "notes": list(loaded.notes),
        "tokens": np.mean([scan.tokens for scan in scans], axis=0),
        "entropy": entropy,
        "mean_entropy": entropy.mean((0, 2)),
        "seed_spread": entropy.mean(2).std(0, ddof=1) if several else [None] * len(config.lengths),
        "window": scans[0].measurements["layers"][0]["window"],
        "slope": float(np.mean([scan.slopes.mean() for scan in scans])),
    }
    return Result(
        kind="figure3",
        config=asdict(config),
        seeds=config.seeds,
        measurements=measurements,
        provenance=watch.provenance(),
    )
