"""Figure 6: the best inverse temperature against the entropy, and polynomials through it."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result

FITS = {
    "temperature": ("our fit to the temperatures", style.MEASURED),
    "inverse temperature": ("our fit to the inverse temperatures", style.PRINTED),
    "paper": ("the paper's polynomial", style.BOUND),
}
MOST = 8.0
"""The highest inverse temperature shown."""


def draw(result: Result) -> Figure:
    """The cloud with both fits at the left; at the right, how often no temperature is too low."""
    found = result.measurements
    spread, best = result.arrays["entropy"], result.arrays["best"]
    with style.house_style():
        figure = Figure(figsize=(13.0, 6.0))
        cloud, leading = figure.subplots(1, 2, width_ratios=(1.7, 1))
        _cloud(cloud, spread, best, found)
        _leading(leading, spread, best)
        handles, labels = cloud.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower left", ncols=2, fontsize=9.5, markerscale=2
        )
        figure.suptitle(
            "The inverse temperature that gives the true maximum most weight",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure


def _cloud(axes: Axes, spread: np.ndarray, best: np.ndarray, found: dict[str, Any]) -> None:
    usable = np.isfinite(best) & (best > 0)
    above = int((best[usable] > MOST).sum())
    axes.scatter(
        spread[usable],
        best[usable],
        s=7,
        color=style.MUTED,
        alpha=0.45,
        lw=0,
        label=f"a set whose maximum does not lead ({usable.sum():,}; {above:,} above)",
    )
    highest = float(spread[usable].max())
    for name, (label, colour) in FITS.items():
        low, high = (0.0, 6.6) if name == "paper" else found["entropies"]
        line = np.linspace(low, high, 400)
        value = np.polyval(found["coefficients"][name], line)
        value = np.where(line > found["threshold"], np.maximum(value, 1.0), 1.0)
        ranges = ", ".join(f"{a:.2f} to {b:.2f}" for a, b in found["sharpens"][name])
        axes.plot(line, value, color=colour, lw=2.2, label=f"{label}: above 1 for {ranges} nats")
    axes.axhline(1, color=style.INK, lw=0.9, ls=":")
    axes.axvline(found["sharpens"]["paper"][-1][1], color=style.BOUND, lw=0.9, ls=":")
    axes.set(xlim=(0, max(6.6, highest)), ylim=(0, MOST))
    axes.set_xlabel("entropy of the set's attention, nats")
    axes.set_ylabel("inverse temperature")
    axes.set_title("maximum not on top: one best temperature")


def _leading(axes: Axes, spread: np.ndarray, best: np.ndarray) -> None:
    """The share of sets whose maximum has the largest logit, by entropy."""
    edges = np.arange(0, np.ceil(2 * spread.max()) / 2 + 0.25, 0.5)
    places = np.digitize(spread, edges) - 1
    shares, middles = [], []
    for place in range(len(edges) - 1):
        inside = places == place
        if inside.sum() >= 20:
            shares.append(100 * float(np.isnan(best[inside]).mean()))
            middles.append((edges[place] + edges[place + 1]) / 2)
    axes.bar(middles, shares, width=0.46, color=style.PRINTED, alpha=0.8)
    axes.set_xlabel("entropy of the set's attention, nats")
    axes.set_ylabel("sets whose maximum leads, %")
    axes.set_ylim(0, 100)
    axes.set_title("maximum on top: the colder the better")
