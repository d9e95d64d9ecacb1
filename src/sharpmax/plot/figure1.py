"""Figure 1: a head's weights as its input grows, against what Lemma 2.1 allows."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result


def draw(result: Result) -> Figure:
    """Four inputs as bars above; weights against their bounds over all sizes below."""
    found, config = result.measurements, result.config
    with style.house_style():
        figure = Figure(figsize=(9.6, 7.2))
        shown = config["shown_sizes"]
        grid = figure.add_gridspec(2, len(shown), height_ratios=(1, 2.1))
        first: Axes | None = None
        for column, (size, weights) in enumerate(zip(shown, found["shown_weights"], strict=True)):
            axes = figure.add_subplot(grid[0, column], sharey=first)
            first = first or axes
            _bars(axes, size, np.asarray(weights), labelled=column == 0)
        _bounds(figure.add_subplot(grid[1, :]), found, config)
        figure.suptitle(
            "One softmax head, one fixed vocabulary: sharp on short inputs, dispersed on long ones",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure


def _bars(axes: Axes, size: int, weights: np.ndarray, *, labelled: bool) -> None:
    """The needle and the others by weight; beyond 32 items a bar would be thinner than a line."""
    others = np.sort(weights[1:])[::-1][:31]
    axes.bar(np.arange(1, others.size + 1), others, color=style.MUTED, width=0.8)
    axes.bar([0], weights[:1], color=style.MEASURED, width=0.9)
    axes.set_ylim(0, 1)
    axes.set_xlim(-1, 32)
    axes.set_xticks([])
    axes.grid(visible=False, axis="x")
    axes.set_title(f"{size} items")
    axes.annotate(
        f"needle {weights[0]:.2f}",
        (0.9, min(weights[0] + 0.04, 0.9)),
        color=style.MEASURED,
        fontsize=9,
    )
    caption = "all items" if size <= 32 else "32 largest weights"
    axes.set_xlabel(caption, color=style.MUTED, fontsize=9)
    if labelled:
        axes.set_ylabel("attention weight")
    else:
        axes.tick_params(labelleft=False)


def _bounds(axes: Axes, found: dict[str, Any], config: dict[str, Any]) -> None:
    sizes = np.asarray(found["sizes"])
    axes.fill_between(sizes, found["tight_low"], found["tight_high"], color=style.SHADE, lw=0)
    tight: dict[str, Any] = {"color": style.BOUND, "lw": 1.6}
    axes.plot(sizes, found["tight_high"], label="bounds, tight form", **tight)
    axes.plot(sizes, found["tight_low"], **tight)
    printed: dict[str, Any] = {"color": style.PRINTED, "lw": 1.4, "ls": (0, (4, 3))}
    axes.plot(sizes, found["paper_high"], label="bounds, Lemma 2.1 as printed", **printed)
    axes.plot(sizes, found["paper_low"], **printed)
    _with_range(axes, sizes, found["needle_weight"], style.MEASURED, "needle, measured")
    _with_range(axes, sizes, found["smallest_weight"], style.MUTED, "smallest weight, measured")
    axes.plot(sizes, 1 / sizes, color=style.INK, lw=0.9, ls=":", label="uniform, 1/n")
    epsilon, start = config["epsilon"], found["dispersed_from"]
    axes.axvline(start, color=style.BOUND, lw=0.9, ls=":")
    axes.annotate(
        f"from {start:,.0f} items no weight\ncan reach {epsilon:g}, whatever the input",
        (start, 2e-9),
        xytext=(-8, 0),
        textcoords="offset points",
        color=style.BOUND,
        fontsize=9,
        ha="right",
    )
    axes.set(xscale="log", yscale="log", xlim=(sizes[0], sizes[-1]), ylim=(1e-9, 3))
    axes.set_xscale("log", base=2)
    axes.set_xlabel("number of items n")
    axes.set_ylabel("attention weight")
    axes.set_title(
        f"vocabulary of {config['vocabulary']} tokens, logits within {config['spread']:g} of each "
        f"other, {config['repeats']} random inputs a size (mean and range)",
        color=style.MUTED,
        fontsize=10,
    )
    axes.legend(loc="upper right", fontsize=9)


def _with_range(axes: Axes, sizes: np.ndarray, values: Any, colour: str, label: str) -> None:
    samples = np.asarray(values)
    axes.fill_between(
        sizes, samples.min(axis=1), samples.max(axis=1), color=colour, alpha=0.25, lw=0
    )
    axes.plot(sizes, samples.mean(axis=1), "o-", color=colour, lw=1.8, ms=3.5, label=label)
