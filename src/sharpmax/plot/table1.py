"""Table 1 as curves, and where the lost answers went."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result

OURS = {
    "baseline": ("softmax", style.BOUND),
    "adaptive": ("adaptive temperature", style.MEASURED),
    "argmax": ("the head's own argmax", style.MUTED),
}
CAUSES = {
    "right": ("right", "#dfe7df"),
    "dispersion": ("dispersion: largest logit right, answer wrong", "#7a5bc7"),
    "ranking": ("ranking: largest logit wrong", "#d9a441"),
}


def draw(result: Result) -> Figure:
    """Accuracy against size, ours and the paper's; then the causes of every wrong answer."""
    found, config = result.measurements, result.config
    with style.house_style():
        figure = Figure(figsize=(14.5, 5.2))
        curves, plain, adaptive = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        _curves(curves, found, len(config["seeds"]))
        _causes(plain, found, "baseline", "softmax: where the answers went")
        _causes(adaptive, found, "adaptive", "with adaptive temperature")
        handles, labels = plain.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower right", ncols=3, fontsize=9, columnspacing=1.4
        )
        figure.suptitle(
            f"Max retrieval, trained on sets of up to {config['training']['largest']} items for "
            f"{config['training']['steps']:,} steps",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure


def _curves(axes: Axes, found: dict[str, Any], seeds: int) -> None:
    sizes = np.asarray(found["sizes"])
    for name, (label, colour) in OURS.items():
        mean = 100 * np.asarray(found["mean"][name])
        dashes = "--" if name == "argmax" else "-"
        axes.plot(sizes, mean, dashes, marker="o", ms=4, lw=1.9, color=colour, label=label)
        if found["std"][name] is not None:
            std = 100 * np.asarray(found["std"][name])
            axes.fill_between(sizes, mean - std, mean + std, color=colour, alpha=0.13, lw=0)
    printed = {int(size): row for size, row in found["paper"].items()}
    for name in ("baseline", "adaptive"):
        axes.plot(
            list(printed),
            [row[name] for row in printed.values()],
            ":",
            marker="x",
            ms=5,
            lw=1.2,
            color=OURS[name][1],
            label=f"the paper's {OURS[name][0]}",
        )
    axes.axhline(10, color=style.MUTED, lw=0.9)
    axes.annotate("chance", (sizes[0], 10), (0, 4), textcoords="offset points", fontsize=9)
    _by_size(axes, sizes)
    axes.set_ylabel("accuracy, %")
    axes.set_title(f"mean of {seeds} seeds, ± standard deviation")
    axes.legend(fontsize=9)


def _causes(axes: Axes, found: dict[str, Any], name: str, title: str) -> None:
    """Every set once: right, or wrong for one of two reasons."""
    sizes = np.asarray(found["sizes"])
    lost = {
        cause: 100 * np.asarray(found["attribution"][name][cause]) for cause in list(CAUSES)[1:]
    }
    shares = {"right": 100 - sum(lost.values()), **lost}
    axes.stackplot(
        sizes,
        *shares.values(),
        colors=[CAUSES[cause][1] for cause in shares],
        labels=[CAUSES[cause][0] for cause in shares],
    )
    _by_size(axes, sizes)
    axes.set_title(title)
    axes.set_ylabel("share of the sets, %")
    axes.set_xlim(sizes[0], sizes[-1])


def _by_size(axes: Axes, sizes: np.ndarray) -> None:
    axes.set_xscale("log", base=2)
    shown = sizes[::2]
    axes.set_xticks(shown, [f"{size:,}" for size in shown])
    axes.set_ylim(0, 100.5)
    axes.set_xlabel("items in the set")
