"""Ways to sharpen the same heads: what each gains, and what it costs on the guard task."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax._names import WAYS_TO_SHARPEN
from sharpmax.plot import style
from sharpmax.results import Result

MARKS = "ovs^<DPX"
BLACK = ("plain", "argmax")
"""The two ends: drawn in black, what lies between them in colours."""


def draw(result: Result) -> Figure:
    """What each gains on max retrieval at the left, its accuracy on the guard task at the right."""
    found = result.measurements
    with style.house_style():
        figure = Figure(figsize=(14.0, 5.8))
        gain, cost = figure.subplots(1, 2)
        plain = np.asarray(found["tasks"]["max"]["mean"]["plain"])
        _curves(gain, found, "max", minus=plain)
        _curves(cost, found, "most-frequent", minus=np.zeros_like(plain))
        gain.set_title("max retrieval: what sharpening gains")
        gain.set_ylabel("accuracy above that of plain softmax, points")
        cost.set_title("the most frequent class: what it costs")
        cost.set_ylabel("accuracy, %")
        cost.set_ylim(0, 102)
        handles, labels = gain.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9.5)
        figure.suptitle(
            "The same trained heads, sharpened at inference in different ways",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure


def _curves(axes: Axes, found: dict[str, Any], task: str, minus: np.ndarray) -> None:
    sizes = np.asarray(found["sizes"])
    for (name, label), mark in zip(WAYS_TO_SHARPEN.items(), MARKS, strict=True):
        kept = "" if found["keeps_guard"][name] else " ✗"
        black: dict[str, Any] = {"color": style.INK, "ls": "--" if name == "argmax" else ":"}
        axes.plot(
            sizes,
            100 * (np.asarray(found["tasks"][task]["mean"][name]) - minus),
            marker=mark,
            ms=5,
            label=label + kept,
            **(black if name in BLACK else {"lw": 3.2 if name == "paper" else 1.6}),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes[::2], [f"{size:,}" for size in sizes[::2]])
    axes.set_xlabel("items in the set (✗: loses more than a point of the task at the right)")
