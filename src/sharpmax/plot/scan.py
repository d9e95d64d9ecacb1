"""A scan at a glance: which heads disperse, and how the layers' entropies grow."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result


def draw(result: Result) -> Figure:
    """Left, the map of slopes by layer and head; right, entropy against tokens, a line a layer."""
    layers = len(result.measurements["layers"])
    with style.house_style():
        figure = Figure(figsize=(11, min(12, max(4.6, 1.6 + 0.2 * layers))))
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.35))
        _map(figure, left, result)
        _curves(right, result)
        config = result.config
        prompt = f"prompt {config['prompt']}, {min(config['lengths']):,} to "
        prompt += f"{max(config['lengths']):,} {config['unit']}"
        figure.suptitle(
            f"{config['model']}: {prompt}", x=0.01, ha="left", fontsize=12.5, fontweight="bold"
        )
    return figure


def _map(figure: Figure, axes: Axes, result: Result) -> None:
    found = result.measurements
    slopes = result.arrays["slopes"]
    picture = axes.imshow(slopes, cmap="viridis", vmin=0, vmax=1, aspect="auto", origin="lower")
    marks = {"sink": "s", "local": "l", "uniform": "u"}
    for row, names in enumerate(found["labels"]):
        for column, name in enumerate(names):
            if name in marks:
                light = not slopes[row, column] > 0.6
                colour = "white" if light else style.INK
                axes.text(
                    column, row, marks[name], ha="center", va="center", color=colour, fontsize=7
                )
    indices = [layer["index"] for layer in found["layers"]]
    step = max(1, len(indices) // 15)
    axes.set_yticks(range(0, len(indices), step), [str(index) for index in indices[::step]])
    axes.set_xticks(range(len(found["heads"])), [str(head) for head in found["heads"]])
    axes.grid(visible=False)
    axes.set_xlabel("head\n(s: rests on the first token, u: uniform, l: sees a window)")
    axes.set_ylabel("attention layer")
    axes.set_title("growth of entropy, nats for each nat of log n")
    figure.colorbar(picture, ax=axes, extend="both", fraction=0.05, pad=0.03)


def _curves(axes: Axes, result: Result) -> None:
    found = result.measurements
    tokens = np.asarray(found["tokens"])
    mean = np.nanmean(result.arrays["last_entropy"], axis=2)
    colours = colormaps["viridis"](np.linspace(0, 0.92, mean.shape[1]))
    named = {0, mean.shape[1] // 2, mean.shape[1] - 1}
    for place, colour in enumerate(colours):
        label = f"layer {found['layers'][place]['index']}" if place in named else None
        axes.plot(tokens, mean[:, place], "o-", color=colour, lw=1.2, ms=2.5, label=label)
    axes.plot(tokens, np.log(tokens), color=style.INK, ls=":", lw=1.2, label="log n, uniform")
    axes.set_xscale("log", base=2)
    axes.set_xticks(tokens, [f"{count:,}" for count in tokens])
    axes.minorticks_off()
    axes.set_xlabel("tokens in the input")
    axes.set_ylabel("entropy at the last token, mean of a layer's heads, nats")
    axes.set_ylim(0)
    axes.legend(loc="upper left", fontsize=9)
    axes.set_title("entropy of each layer")
