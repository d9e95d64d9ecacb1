"""The tables of docs/clrs.md: exact match by algorithm and arm, at the sizes trained at and beyond.

`make claims` writes them, from the committed results alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from claim_numbers import share
from marked import markdown

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
        text = "Not run yet." if found is None else table(found)
        parts.append(f"### {title}\n\n{text}")
    return "\n\n".join(parts)


def table(result: Result) -> str:
    """For each algorithm a row of the sizes trained at and one of those beyond."""
    found = result.measurements
    rows = []
    for name, one in found["algorithms"].items():
        largest = max(one["train_sizes"])
        for where, inside in (("trained at", True), ("beyond", False)):
            places = [
                place for place, size in enumerate(one["sizes"]) if (size <= largest) == inside
            ]
            sizes = [one["sizes"][place] for place in places]
            if not sizes:
                continue
            rows.append(
                [
                    name.removeprefix("find_maximum_subarray_").replace("_", " "),
                    f"{where}: {', '.join(map(str, sizes))}",
                    share(float(np.mean([one["familiar"][place] for place in places]))),
                    *(_mean(one["arms"][arm], places) for arm in found["labels"]),
                ]
            )
    return markdown(
        ["algorithm", "sizes", "familiar", *(f"`{arm}`" for arm in found["labels"])], rows
    )


def _mean(curve: dict[str, Any], places: list[int]) -> str:
    """Over sizes and test sets, ± over trainings."""
    by_training = np.asarray(curve["accuracy"])[:, :, places].mean((1, 2))
    return share(by_training.mean(), by_training.std(ddof=1) if len(by_training) > 1 else None)
