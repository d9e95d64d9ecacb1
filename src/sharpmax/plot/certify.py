"""A certificate at a glance: the spread that each head's weights allow, and what was measured."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result


def draw(result: Result) -> Figure:
    """Left, the spread by layer, a dot a head; right, the tokens from which on weights must be
    small.
    """
    with style.house_style():
        figure = Figure(figsize=(11, 4.6))
        left, right = figure.subplots(1, 2)
        _spreads(left, result)
        _tokens(right, result)
        figure.suptitle(
            f"{result.config['model']}: what the weights allow",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure


def _spreads(axes: Axes, result: Result) -> None:
    indices = [layer["index"] for layer in result.measurements["layers"]]
    kinds = {"certified, for all inputs": ("spread_bound", style.BOUND)}
    scan = result.config["scan"]
    if scan is not None:
        label = f"measured, up to {scan['tokens']:,} tokens"
        kinds[label] = ("measured_spread", style.MEASURED)
    for label, (name, colour) in kinds.items():
        values = result.arrays[name]
        places = np.repeat(indices, values.shape[1])
        axes.plot(places, values.ravel(), "o", color=colour, ms=3, alpha=0.6, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("attention layer")
    axes.set_ylabel("largest logit minus smallest")
    axes.legend(loc="best", fontsize=9)
    axes.set_title("spread of each head's logits")


def _tokens(axes: Axes, result: Result) -> None:
    layers = result.measurements["layers"]
    indices = [layer["index"] for layer in layers]
    for epsilon in result.config["epsilons"]:
        values = [layer["log10_items"][str(epsilon)] for layer in layers]
        axes.plot(indices, values, "o-", ms=3, lw=1.2, label=f"no weight reaches {epsilon:.0%}")
    context = result.config["context"]
    if context is not None:
        label = f"its context, {context:,} tokens"
        axes.axhline(np.log10(context), color=style.INK, ls=":", lw=1.2, label=label)
    axes.set_ylim(0)
    axes.set_xlabel("attention layer")
    axes.set_ylabel("log10 of the number of tokens")
    axes.legend(loc="best", fontsize=9)
    axes.set_title("tokens at which every head of a layer must have dispersed")
