"""A made-up result of the corollary with two heads."""

from __future__ import annotations

from sharpmax.results import Result, Stopwatch


def corollary() -> Result:
    sizes, types = [16, 64, 256, 1024], ["float64", "float32", "float16", "bfloat16"]
    accuracy = [[1.0, 0.9, 0.4, 0.1], [0.95, 0.8, 0.3, 0.2]]
    change = [[1.0, 0.5, 0.05, 0.001], [1.0, 0.4, 0.04, 0.002]]
    return Result(
        kind="corollary",
        config={"sizes": sizes, "sets": 8, "seeds": None},
        seeds=(0, 1),
        measurements={
            "types": types,
            "ignored_from": [[1e19, 1e9, 1e7, 1000.0], [None, 2e9, 2e7, 2000.0]],
            "largest_change_bound": [[2 * value for value in row] for row in change],
            "largest_change": change,
            "unseen": [[[0.0, 0.0, 0.0, 0.0]] * 3 + [[0.0, 0.0, 0.0, 1.0]]] * 2,
            "accuracy": accuracy,
            "follows": [[1.0, 0.5, 0.0, 0.0], [0.9, 0.1, 0.0, 0.0]],
            "depends": [[1.0, 1.0, 0.5, 0.0]] * 2,
            "weight": [[0.9, 0.5, 0.1, 0.01]] * 2,
        },
        provenance=Stopwatch().provenance(),
    )
