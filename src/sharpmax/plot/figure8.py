"""Figure 8: accuracy against size, a panel an algorithm, a line an arm, training sizes marked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sharpmax.plot import style
from sharpmax.results import Result

COLUMNS = 6
"""The paper's panels are thirty."""
LOOKS = (
    {"color": style.INK, "ls": ":", "marker": "s"},
    {"color": style.MEASURED, "ls": "-", "marker": "o"},
    {"color": style.BOUND, "ls": "--", "marker": "^"},
    *({"color": colour, "ls": "-.", "marker": "D"} for colour in style.CYCLE[2:6]),
)
SHORT = {"find_maximum_subarray_kadane": "kadane", "strongly_connected_components": "strong comp."}


def draw(result: Result) -> Figure:
    """Mean over trainings and test sets; the band is the standard deviation over test sets.

    The thin line is the share of answers that name only items which problems of the sizes trained
    at have.
    """
    found = result.measurements
    algorithms = found["algorithms"]
    columns = min(COLUMNS, max(3, math.ceil(math.sqrt(len(algorithms)))), max(1, len(algorithms)))
    rows = math.ceil(len(algorithms) / columns)
    with style.house_style():
        figure = Figure(figsize=(max(8.4, 2.9 * columns), 2.4 * rows + 1.6))
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes in panels.flat[len(algorithms) :]:
            axes.set_visible(False)
        for axes, (name, one) in zip(panels.flat, algorithms.items(), strict=False):
            _panel(axes, name, one, found["labels"])
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=2, fontsize=9)
        for place, axes in enumerate(panels.flat):
            if len(algorithms) - columns <= place < len(algorithms):  # nothing below it
                axes.set_xlabel("size of the problem")
        figure.supylabel("exact match", fontsize=10)
        seeds, tests = len(result.seeds), len(found["test_seeds"])
        figure.suptitle(
            f"CLRS-Text at sizes beyond those trained at\n{found['model']}; trainings of each: "
            f"{seeds}, test sets: {tests}",
            x=0.01,
            ha="left",
            fontsize=12,
            fontweight="bold",
        )
    return figure


def titled(algorithm: str) -> str:
    """Its name as a reader would write it, short enough for a panel."""
    return SHORT.get(algorithm, algorithm).replace("_", " ")


def _panel(axes: Axes, name: str, one: dict[str, Any], labels: dict[str, str]) -> None:
    sizes = np.asarray(one["sizes"])
    for trained in one["train_sizes"]:
        axes.axvspan(trained - 0.5, trained + 0.5, color=style.SHADE, lw=0, zorder=0)
    axes.plot([], [], color=style.SHADE, lw=3, label="trained at these sizes")
    if min(one["familiar"]) < 1:
        axes.plot(sizes, one["familiar"], color=style.MUTED, lw=1, zorder=1)
    axes.plot([], [], color=style.MUTED, lw=1, label="answers of items seen in training")
    for place, (arm, curve) in enumerate(one["arms"].items()):
        look: dict[str, Any] = LOOKS[place % len(LOOKS)]
        mean = np.asarray(curve["mean"])
        # The first arm on top: one that changes nothing would hide it.
        axes.plot(sizes, mean, ms=3, lw=1.5, label=labels[arm], zorder=3 - 0.1 * place, **look)
        if curve["std_tests"] is not None:
            std = np.asarray(curve["std_tests"])
            axes.fill_between(sizes, mean - std, mean + std, color=look["color"], alpha=0.15, lw=0)
    axes.set_title(titled(name), fontsize=10)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
