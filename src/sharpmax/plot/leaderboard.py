"""The leaderboard: accuracy and sharpness against the size of the set, and the guard task against
the maximum, a column a track.
"""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sharpmax.plot import style
from sharpmax.results import Result

NAMED = 5
"""So many of a track have a colour; with twenty, nobody could tell them apart."""

LETTERS = 8.5
"""Of a title, to an inch."""

COLOURS, MARKS = style.CYCLE[:-1], "os^D"
OTHER: dict[str, Any] = {"color": "#c3c8cf", "lw": 0.9, "ms": 2.5, "zorder": 2}
PERCENT = PercentFormatter(1.0, decimals=0)

BASELINE = "softmax"
PAPERS = "adaptive-temperature"
"""Always in colour, as softmax is."""

GUARD = "most-frequent"
SAME_GUARD = {"augmented": "trained", "augmented-drop-in": "drop-in"}
"""Narrow ranges change nothing in the guard task: its rows are those of the other track."""

Rows = dict[str, dict[str, Any]]
"""Of one track and task, by method."""


def draw(result: Result) -> Figure:
    """Two rows of panels, and a third where the guard task was measured."""
    found = result.measurements
    tracks, task = list(found["tracks"]), result.config["tasks"][0]
    by_track = [_rows(found, track, task) for track in tracks]
    looks = _looks(by_track)
    guarded = any(row["task"] == GUARD for row in found["rows"])
    with style.house_style():
        figure = Figure(figsize=(max(10.4, 5.2 * len(tracks)), 13.6 if guarded else 9.2))
        panels = figure.subplots(3 if guarded else 2, len(tracks), squeeze=False)
        for (accuracy, sharpness, *guard), track, rows in zip(
            panels.T, tracks, by_track, strict=True
        ):
            _curves(accuracy, found["sizes"], rows, looks, "mean")
            accuracy.set_title(f"{track}: accuracy on {task}")
            accuracy.set_ylim(0, 1.02)
            accuracy.yaxis.set_major_formatter(PERCENT)
            if rows:
                accuracy.legend(fontsize=8.5, loc="lower left", frameon=True, edgecolor="none")
            _curves(sharpness, found["sizes"], rows, looks, "sharpness")
            sharpness.set_title("the largest weight, as a share of all")
            sharpness.set_yscale("log")
            for axes in guard:
                guards = _rows(found, track, GUARD) or _rows(
                    found, SAME_GUARD.get(track, ""), GUARD
                )
                _scatter(axes, rows, guards, looks, (f"accuracy on {GUARD}", f"accuracy on {task}"))
                axes.set_title(f"both tasks, {found['sizes'][-1]:,} items")
        title = (
            f"Trained on sets of 5 to 16 items for {result.config['budget']['steps']:,} steps, "
            f"seeds: {len(result.seeds)}. In colour: softmax, the paper's method and the best "
            f"{NAMED} of each track on the largest sets; grey: the others"
        )
        figure.suptitle(
            textwrap.fill(title, int(LETTERS * figure.get_figwidth())),
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure


def _rows(found: dict[str, Any], track: str, task: str) -> Rows:
    """Those that took part."""
    return {
        row["method"]: row
        for row in found["rows"]
        if row["track"] == track and row["task"] == task and "reason" not in row
    }


def _looks(by_track: list[Rows]) -> dict[str, dict[str, Any]]:
    """How each method is drawn, the same in all tracks: those among the best of any, and the
    paper's, have a colour and a mark.
    """
    looks: dict[str, dict[str, Any]] = {}
    for rows in by_track:
        for name in [*_ranked(rows)[:NAMED], *({PAPERS} & set(rows))]:
            if name not in looks and name != BASELINE:
                turn, place = divmod(len(looks), len(COLOURS))
                looks[name] = {"color": COLOURS[place], "marker": MARKS[turn], "zorder": 3}
    return looks | {BASELINE: {"color": style.INK, "ls": ":", "lw": 2.4, "zorder": 4}}


def _ranked(rows: Rows) -> list[str]:
    """The most accurate on the largest sets first."""
    return sorted(rows, key=lambda name: -rows[name]["mean"][-1])


def _curves(
    axes: Axes, sizes: list[int], rows: Rows, looks: dict[str, dict[str, Any]], what: str
) -> None:
    """One line a method; those that have a look are in the legend, the best first."""
    for name in _ranked(rows):
        values = np.asarray(rows[name][what], float)  # None becomes NaN, which has no dot
        look = {"lw": 1.8, "label": name, **looks[name]} if name in looks else OTHER
        axes.plot(sizes, values, **{"marker": "o", "ms": 4, **look})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xlabel("items in the set")


def _scatter(
    axes: Axes, rows: Rows, guards: Rows, looks: dict[str, dict[str, Any]], labels: tuple[str, str]
) -> None:
    """The guard task to the right, the first task upwards, both on the largest sets."""
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_xlim(0, 1.04)
    axes.set_ylim(0, 1.04)
    for shares in (axes.xaxis, axes.yaxis):
        shares.set_major_formatter(PERCENT)
    if not guards:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
    for name in set(rows) & set(guards):
        look = looks.get(name, OTHER)
        axes.plot(
            guards[name]["mean"][-1],
            rows[name]["mean"][-1],
            look.get("marker", "o"),
            ms=8,
            color=look["color"],
            zorder=look["zorder"],
        )
