"""Attention of many sets as frames of colour, one scale for all; Figures 2 and 7."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result

NAMES = {"baseline": "softmax", "adaptive": "adaptive temperature"}
COLUMNS = 6
COLOURS = "magma"


def frames(result: Result, title: str) -> Figure:
    """A frame for each size, a block of frames for each method."""
    found, config = result.measurements, result.config
    sizes, methods = found["sizes"], config["methods"]
    deep = -(-len(sizes) // COLUMNS)
    with style.house_style():
        figure = Figure(figsize=(2.35 * COLUMNS + 1.2, 3.9 * deep * len(methods) + 0.6))
        blocks = figure.subfigures(len(methods), 1, squeeze=False, hspace=0.02)
        image = None
        for block, name in zip(blocks.flat, methods, strict=True):
            grid = block.subplots(deep, COLUMNS, squeeze=False)
            weights = np.asarray(found["weights"][name])
            for place, axes in enumerate(grid.flat):
                if place >= len(sizes):
                    axes.set_axis_off()
                    continue
                image = axes.imshow(
                    weights[place],
                    cmap=COLOURS,
                    vmin=0,
                    vmax=1,
                    aspect="auto",
                    interpolation="nearest",
                )
                mean = found["weight_of_maximum"][name][place]
                axes.set_title(f"{sizes[place]:,} items: {mean:.2f}", fontsize=10)
                axes.grid(visible=False)
                last = weights.shape[2] - 1
                axes.set_xticks([0, last], [f"{last + 1}th", "max"], fontsize=8.5)
                axes.set_yticks([])
                if place % COLUMNS == 0:
                    axes.set_ylabel(f"{config['sets']} sets")
            block.suptitle(
                f"{NAMES[name]}; above each frame, the mean weight of the maximum",
                x=0.01,
                ha="left",
                fontsize=10.5,
                color=style.MUTED,
            )
            block.colorbar(image, ax=grid, label="weight", shrink=0.8, pad=0.012, aspect=35)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    return figure
