"""A Figure 8 that no training made: the layout of a real one."""

from __future__ import annotations

from sharpmax.experiments.clrs_text.algorithms import ALGORITHMS, TEST_SIZES, TRAIN_SIZES
from sharpmax.experiments.clrs_text.conditions import CONDITIONS
from sharpmax.results import Result, Stopwatch


def curve(sizes: list[int], slope: float) -> dict[str, object]:
    mean = [max(0.0, 1 - slope * size / 64) for size in sizes]
    spread = [0.02] * len(sizes)
    return {
        "mean": mean,
        "mean_familiar": mean,
        "std_tests": spread,
        "std_trainings": spread,
        "mean_entropy": mean,
    }


def figure8(algorithms: int = 8) -> Result:
    """Made up: a picture needs no training."""
    slopes = {"softmax": 1.0, "adaptive": 0.7, "inference": 1.5}
    panels = {}
    for name in ALGORITHMS[:algorithms]:
        sizes = list(TEST_SIZES[name])
        arms = {arm: curve(sizes, slope) for arm, slope in slopes.items()}
        largest = max(TRAIN_SIZES[name])
        panels[name] = {
            "sizes": sizes,
            "train_sizes": list(TRAIN_SIZES[name]),
            "familiar": [min(1.0, largest / size) for size in sizes],
            "arms": arms,
        }
    return Result(
        kind="figure8",
        config={},
        seeds=(0, 1),
        measurements={
            "model": "Gemma of 1,000,000 parameters",
            "test_seeds": [3, 14],
            "labels": {name: CONDITIONS[name].label for name in slopes},
            "algorithms": panels,
        },
        provenance=Stopwatch().provenance(),
    )
