"""Figures 2 and 7: the attention of a head that finds the maximum, set by set, as sets grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Frames, Line, Table
from sharpmax.report.numbers import counted, joined
from sharpmax.report.table1 import NAMES, by_size
from sharpmax.results import Result

TITLES = {
    "figure2": "A head that finds the maximum, as its set grows",
    "figure7": "The same head without and with adaptive temperature",
}


def content(result: Result) -> Content:
    found, config = result.measurements, result.config
    sizes, weights = found["sizes"], found["weight_of_maximum"]
    told = [
        f"{weights[name][0]:.2f} among {sizes[0]:,} items and {weights[name][-1]:.3f} among "
        f"{sizes[-1]:,} with {NAMES[name]}"
        for name in config["methods"]
    ]
    return Content(
        what=f"Figure {result.kind[-1]}: attention set by set",
        title=TITLES[result.kind],
        facts=[
            f"{counted(config['sets'], 'set')} of each size",
            f"the {config['items']} items of highest priority",
        ],
        findings=[f"The true maximum has a mean weight of {joined(told)}."],
        advice=[],
        blocks=[
            *(_frames(found, config, name) for name in config["methods"]),
            _curves(found, config["methods"]),
            _table(found, config["methods"]),
        ],
    )


def _frames(found: dict[str, Any], config: dict[str, Any], name: str) -> Frames:
    means = found["weight_of_maximum"][name]
    items = config["items"]
    return Frames(
        title=f"Weights: {NAMES[name]}",
        captions=[
            f"{size:,} items: {mean:.2f}" for size, mean in zip(found["sizes"], means, strict=True)
        ],
        frames=np.round(np.asarray(found["weights"][name]), 3).tolist(),
        rows=[f"set {row + 1}" for row in range(config["sets"])],
        columns=[
            "the maximum" if place == items - 1 else f"item {items - place} by priority"
            for place in range(items)
        ],
        ends=(0.0, 1.0),
        unit="weight",
        digits=3,
        text="A row is a set, a column an item, the maximum at the right. Above each frame: the "
        "mean weight of the maximum.",
    )


def _curves(found: dict[str, Any], methods: list[str]) -> Chart:
    lines = [
        Line(NAMES[name], found["sizes"], found["weight_of_maximum"][name]) for name in methods
    ]
    axis = Axis("mean weight of the maximum", digits=3, low=0, high=1.04)
    return Chart("Weight of the maximum", by_size(found["sizes"]), axis, lines)


def _table(found: dict[str, Any], methods: list[str]) -> Table:
    columns = [Column("Items", 0), *(Column(NAMES[name].capitalize(), 4) for name in methods)]
    rows = [
        [size, *(found["weight_of_maximum"][name][place] for name in methods)]
        for place, size in enumerate(found["sizes"])
    ]
    return Table("Mean weight of the maximum", columns, rows)
