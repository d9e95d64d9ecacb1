"""The unknown settings against Table 1, a panel for each."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result


def draw(result: Result) -> Figure:
    """Plain softmax after each number of steps, and the paper's baseline."""
    found, config = result.measurements, result.config
    sizes = np.asarray(config["sizes"])
    printed = {int(size): row["baseline"] for size, row in found["paper"].items()}
    panels = [(True, True), (True, False), (False, True), (False, False)]
    with style.house_style():
        figure = Figure(figsize=(12.5, 8.0))
        for axes, (scaled, decoupled) in zip(
            figure.subplots(2, 2, sharex=True, sharey=True).flat, panels, strict=True
        ):
            for place, cell in enumerate(found["cells"]):
                if (cell["scaled"], cell["decoupled"]) != (scaled, decoupled):
                    continue
                seeds = cell["seeds"]
                closest = ", the closest" if place == found["closest"] else ""
                axes.plot(
                    sizes,
                    100 * np.asarray(cell["mean"]["baseline"]),
                    "o-",
                    ms=4,
                    label=f"{cell['steps']:,} steps: {cell['distance']['mean']:.1f} points "
                    f"away{closest}",
                )
            axes.plot(list(printed), list(printed.values()), "x:", color=style.INK, label="Table 1")
            logits = "logits / √128" if scaled else "logits as they are"
            decay = "decoupled decay" if decoupled else "L2 in the loss"
            axes.set_title(f"{logits}, {decay}; mean of {seeds} seed{'s' * (seeds > 1)}")
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes[::2], [f"{size:,}" for size in sizes[::2]])
            axes.set_ylim(0, 100.5)
            axes.legend(fontsize=9, loc="lower left")
        figure.supxlabel("items in the set", fontsize=10)
        figure.supylabel("accuracy of softmax, %", fontsize=10)
        figure.suptitle(
            "What is not known of the paper's settings, tried",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure
