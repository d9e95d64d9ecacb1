"""Figures 2 and 7: the attention of a head that finds the maximum, set by set, as sets grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Frames, Line, Table, Verdict
from sharpmax.report.kinds._shared import size_axis
from sharpmax.report.numbers import plural
from sharpmax.report.palette import METHODS
from sharpmax.results import Result, schemas

FRAMES = 6
"""Sizes that are drawn, so that two methods fit below each other; the table has all of them."""
TITLES = {
    "figure2": "A head that finds the maximum, as its set grows",
    "figure7": "The same head without and with adaptive temperature",
}


def describe(result: Result) -> Content:
    maps = schemas.AttentionMaps.of(result)
    shown = _shown_sizes(maps.sizes)
    frames = [_frames(maps, method, shown) for method in maps.methods]
    if len(maps.methods) == 2:
        frames.append(_difference(maps, shown))
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
        verdict=_verdict(maps),
        blocks=[*frames, _curves(maps), _table(maps)],
        picture=frames,
    )


def _verdict(maps: schemas.AttentionMaps) -> Verdict:
    first, last = maps.sizes[0], maps.sizes[-1]
    weights = [maps.weight_of_maximum[method] for method in maps.methods]
    if len(weights) == 1:
        return Verdict(
            "bad",
            "The head loses the maximum: its weight falls from "
            f"{weights[0][0]:.2f} among {first:,} items to {weights[0][-1]:.2f} among {last:,}.",
            command="sharpmax reproduce figure7",
        )
    gains = np.subtract(weights[1], weights[0])
    most = int(gains.argmax())
    return Verdict(
        "mixed" if gains[most] > 0 else "bad",
        f"{METHODS[maps.methods[1]].name.capitalize()} adds {gains[most]:.2f} to the weight of the "
        f"maximum at {maps.sizes[most]:,} items, where it helps most, and {gains[-1]:.2f} at "
        f"{last:,}.",
        command="sharpmax reproduce table1",
    )


def _shown_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the indices of at most `FRAMES` sizes, both ends among them."""
    places = np.linspace(0, len(sizes) - 1, min(len(sizes), FRAMES)).round().astype(int)
    return list(dict.fromkeys(places.tolist()))


def _frames(maps: schemas.AttentionMaps, method: str, shown: Sequence[int]) -> Frames:
    means = maps.weight_of_maximum[method]
    return Frames(
        title=f"Weights with {METHODS[method].name}",
        captions=[f"{maps.sizes[index]:,} items: {means[index]:.2f}" for index in shown],
        frames=np.round([maps.weights[method][index] for index in shown], 3).tolist(),
        ends=(0.0, 1.0),
        unit="weight",
        text="Each row is a set, each column an item by priority, with the maximum at the right. "
        "Above each frame: the mean weight of the maximum."
        if method == maps.methods[0]
        else "",
        **_layout(maps),
    )


def _difference(maps: schemas.AttentionMaps, shown: Sequence[int]) -> Frames:
    """Subtract the weights of the first method from those of the second."""
    plain, other = maps.methods
    changes = [
        np.subtract(maps.weights[other][index], maps.weights[plain][index]) for index in shown
    ]
    means = np.subtract(maps.weight_of_maximum[other], maps.weight_of_maximum[plain])
    largest = max(0.01, max(float(np.abs(change).max()) for change in changes))
    return Frames(
        title=f"{METHODS[other].name.capitalize()} minus {METHODS[plain].name}",
        captions=[f"{maps.sizes[index]:,} items: {means[index]:+.2f}" for index in shown],
        frames=np.round(changes, 3).tolist(),
        ends=(-largest, largest),
        unit="change of weight",
        signed=True,
        **_layout(maps),
    )


def _layout(maps: schemas.AttentionMaps) -> dict[str, Any]:
    ranks = [f"item {rank} by priority" for rank in range(maps.items, 1, -1)]
    return {
        "rows": [f"set {row + 1}" for row in range(maps.sets)],
        "columns": [*ranks, "the maximum"],
        "digits": 3,
        "sides": (plural(maps.sets, "set"), "items by priority, maximum right"),
    }


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
