"""CLRS-Text in numbers: the tables of docs/clrs.md and what the claims say of it; exact match by
algorithm and arm, at the sizes trained at and beyond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from claim_numbers import share
from marked import markdown

from sharpmax.plot.figure8 import titled
from sharpmax.results import Result

PARTS = {
    "Trained from scratch": "figure8.json",
    "Fine-tuned, as in the paper": "tuned/figure8.json",
}
"""Titles and results."""


def tables(results: Mapping[str, Any]) -> str:
    """A table for each result that is there."""
    parts = []
    for title, name in PARTS.items():
        found = results[name]
        text = "Not run yet." if found is None else f"{table(found)}\n\n{by_size(found)}".strip()
        parts.append(f"### {title}\n\n{text}")
    return "\n\n".join(parts)


def table(result: Result) -> str:
    """For each algorithm a row of the sizes trained at and one of those beyond."""
    found = result.measurements
    rows = []
    for name, one in found["algorithms"].items():
        for where, beyond in (("trained at", False), ("beyond", True)):
            chosen = places(one, beyond=beyond)
            if not chosen:
                continue
            familiar = np.mean([one["familiar"][place] for place in chosen])
            arms = (over_trainings(by_training(one, arm, beyond=beyond)) for arm in found["labels"])
            sizes = ", ".join(str(one["sizes"][place]) for place in chosen)
            rows.append([titled(name), f"{where}: {sizes}", share(float(familiar)), *arms])
    head = ["algorithm", "sizes", "familiar", *(f"`{arm}`" for arm in found["labels"])]
    return markdown(head, rows)


def by_size(result: Result, algorithm: str = "minimum") -> str:
    """Each arm's familiar answers, mean over test sets and trainings."""
    one = result.measurements["algorithms"].get(algorithm)
    if one is None:
        return ""
    head = [f"{algorithm}, familiar answers", *map(str, one["sizes"])]
    rows = [
        [f"`{arm}`", *("—" if each is None else share(each) for each in curve["mean_familiar"])]
        for arm, curve in one["arms"].items()
    ]
    return markdown(head, rows)


def beyond(result: Result) -> str:
    """Each arm beyond the sizes trained at, mean over the algorithms ± over trainings, and how
    many algorithms it is better in than the first arm.
    """
    algorithms, labels = result.measurements["algorithms"], result.measurements["labels"]
    scores = {
        arm: np.stack([by_training(one, arm, beyond=True) for one in algorithms.values()])
        for arm in labels
    }
    told, first = [], next(iter(labels))
    for arm, label in labels.items():
        better = (scores[arm].mean(1) > scores[first].mean(1)).sum()
        wins = "" if arm == first else f", better in {better} of {len(algorithms)}"
        told.append(f"{label} {over_trainings(scores[arm].mean(0))} %{wins}")
    return "; ".join(told)


def inside(result: Result) -> str:
    """Of the first arm, by algorithm."""
    found = result.measurements
    first = next(iter(found["labels"]))
    told = [
        f"{titled(name)} {over_trainings(by_training(one, first, beyond=False))}"
        for name, one in found["algorithms"].items()
    ]
    return ", ".join(told) + " %"


def over_trainings(accuracy: np.ndarray) -> str:
    """Mean ± standard deviation, if there are several."""
    return share(accuracy.mean(), accuracy.std(ddof=1) if len(accuracy) > 1 else None)


def by_training(one: dict[str, Any], arm: str, *, beyond: bool) -> np.ndarray:
    """Mean over test sets and sizes; of the last size if there are none."""
    accuracy = np.asarray(one["arms"][arm]["accuracy"])  # [training, test set, size]
    return accuracy[:, :, places(one, beyond=beyond) or [-1]].mean((1, 2))


def places(one: dict[str, Any], *, beyond: bool) -> list[int]:
    """Of the sizes up to the largest trained at, or of those beyond it."""
    largest = max(one["train_sizes"], default=0)
    return [place for place, size in enumerate(one["sizes"]) if (size > largest) == beyond]
