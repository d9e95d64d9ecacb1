"""An evaluation at a glance: how often each way of sharpening is right, and what it changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result

WIDTH = 0.3
"""Of a length's group of points, in doublings of the length."""
COLOURS = style.CYCLE[:-1]
"""Of the ways of sharpening, with dashes the second time; the last is too near to plain's."""


def draw(result: Result) -> Figure:
    """Left, the share of right answers; right, how much more probable the right answer became."""
    with style.house_style():
        figure = Figure(figsize=(11.5, 4.8))
        left, right = figure.subplots(1, 2)
        _panel(left, result, lambda row: row["accuracy"], 100)
        left.set_ylabel("right answers, %")
        left.set_title("accuracy, with 95 % intervals")
        _panel(right, result, _change, 1)
        right.axhline(0, color=style.INK, lw=1)
        right.set_ylabel("nats, against plain attention")
        right.set_title("change of log p(right answer), with 95 % intervals")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", fontsize=9)
        config = result.config
        figure.suptitle(
            f"{config['model']}: {config['task']}, {config['prompts'] * config['questions']:,} "
            "questions of each length",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure


def _change(row: dict[str, Any]) -> dict[str, float] | None:
    found = row.get("log_probability_compared")
    return None if found is None else {"mean": found["difference"], **found}


def _panel(axes: Axes, result: Result, value: Any, factor: float) -> None:
    arms, lengths = list(result.config["arms"]), result.config["lengths"]
    shifts = np.linspace(-WIDTH / 2, WIDTH / 2, len(arms)) if len(arms) > 1 else [0.0]
    for place, (arm, shift) in enumerate(zip(arms, shifts, strict=True)):
        found = [
            (row["length"], value(row))
            for row in result.measurements["rows"]
            if row["arm"] == arm and value(row) is not None
        ]
        if not found:
            continue
        again, colour = divmod(place - 1, len(COLOURS))
        means = np.array([one["mean"] for _, one in found])
        low = means - np.array([one["low"] for _, one in found])
        high = np.array([one["high"] for _, one in found]) - means
        axes.errorbar(
            [length * 2**shift for length, _ in found],
            factor * means,
            # The mean may lie outside an interval that is pulled towards the middle.
            yerr=factor * np.maximum(0, [low, high]),
            fmt="s--" if again > 0 else "o-",
            ms=4,
            lw=1.2 if place else 1.8,
            capsize=2,
            color=COLOURS[colour] if place else style.INK,
            label=arm,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel(result.config["unit"])
