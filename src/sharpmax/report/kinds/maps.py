"""Figures 2 and 7: the attention of a head that finds the maximum, set by set, as sets grow."""

from __future__ import annotations

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Frames, Line, Table
from sharpmax.report.kinds._shared import size_axis
from sharpmax.report.numbers import plural
from sharpmax.report.palette import METHODS
from sharpmax.results import Result, schemas

TITLES = {
    "figure2": "A head that finds the maximum, as its set grows",
    "figure7": "The same head without and with adaptive temperature",
}


def describe(result: Result) -> Content:
    maps = schemas.AttentionMaps.of(result)
    frames = [_frames(maps, method) for method in maps.methods]
    return Content(
        what=f"Figure {result.kind[-1]}: attention set by set",
        title=TITLES[result.kind],
        facts=[
            f"{plural(maps.sets, 'set')} of each size",
            f"the {maps.items} items of highest priority",
        ],
        sentences=[
            f"With {METHODS[method].name} the maximum has a mean weight of "
            f"{maps.weight_of_maximum[method][0]:.2f} among {maps.sizes[0]:,} items and "
            f"{maps.weight_of_maximum[method][-1]:.3f} among {maps.sizes[-1]:,}."
            for method in maps.methods
        ],
        blocks=[*frames, _curves(maps), _table(maps)],
        picture=frames,
    )


def _frames(maps: schemas.AttentionMaps, method: str) -> Frames:
    means = maps.weight_of_maximum[method]
    return Frames(
        title=f"Weights with {METHODS[method].name}",
        captions=[
            f"{size:,} items: {mean:.2f}" for size, mean in zip(maps.sizes, means, strict=True)
        ],
        frames=np.round(np.asarray(maps.weights[method]), 3).tolist(),
        rows=[f"set {row + 1}" for row in range(maps.sets)],
        columns=[
            *(f"item {rank} by priority" for rank in range(maps.items, 1, -1)),
            "the maximum",
        ],
        ends=(0.0, 1.0),
        unit="weight",
        digits=3,
        text="Each row is a set, each column an item by priority, with the maximum at the right. "
        "Above each frame: the mean weight of the maximum.",
        sides=(plural(maps.sets, "set"), "items by priority, maximum right"),
    )


def _curves(maps: schemas.AttentionMaps) -> Chart:
    lines = [
        Line.of(METHODS[method], maps.sizes, maps.weight_of_maximum[method])
        for method in maps.methods
    ]
    axis = Axis("mean weight of the maximum", digits=3, low=0, high=1.04)
    return Chart("Weight of the maximum", size_axis(maps.sizes), axis, lines)


def _table(maps: schemas.AttentionMaps) -> Table:
    names = [METHODS[method].name for method in maps.methods]
    columns = [Column("Items", 0), *(Column(name.capitalize(), 4, "higher") for name in names)]
    rows = [
        [size, *(maps.weight_of_maximum[method][index] for method in maps.methods)]
        for index, size in enumerate(maps.sizes)
    ]
    return Table("Mean weight of the maximum", columns, rows)
