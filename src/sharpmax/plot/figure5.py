"""Figure 5: the entropy of a power series over base and temperature, and its four regions."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sharpmax.plot import style
from sharpmax.results import Result

SLICES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def draw(result: Result) -> Figure:
    """The plane at the left, six temperatures through it at the right."""
    found, config = result.measurements, result.config
    with style.house_style():
        figure = Figure(figsize=(11.4, 5.0))
        plane, slices = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _plane(figure, plane, result, found)
        _slices(slices, result, found)
        figure.suptitle(
            f"Entropy of softmax$_θ$(λ, λ², …, λ$^{{{config['elements']}}}$)",
            x=0.01,
            ha="left",
            fontsize=12.5,
            fontweight="bold",
        )
    return figure


def _plane(figure: Figure, axes: Axes, result: Result, found: dict[str, Any]) -> None:
    base, temperature = result.arrays["base"], result.arrays["temperature"]
    image = axes.pcolormesh(
        base,
        temperature,
        result.arrays["entropy"],
        cmap="viridis",
        vmin=0,
        vmax=found["largest_entropy"],
        shading="nearest",
        rasterized=True,
    )
    figure.colorbar(image, ax=axes, label="entropy (nats)", pad=0.02)
    lines: dict[str, Any] = {"colors": "white", "linewidths": 1.3}
    axes.contour(
        base, temperature, result.arrays["entropy"], levels=[found["sharp_below_entropy"]], **lines
    )
    axes.set(yscale="log", xlabel="λ", ylabel="temperature θ", title="the plane, in four regions")
    axes.grid(visible=False)
    hot = found["hot_from_temperature"]
    if hot is not None:
        axes.axhline(hot, color="white", lw=1.3)
        _regions(axes, hot, float(temperature[0]), float(temperature[-1]))


def _regions(axes: Axes, hot: float, coldest: float, hottest: float) -> None:
    """Name the regions; the two at the edges are narrow, so their names stand above them."""
    box = {"facecolor": style.INK, "alpha": 0.6, "edgecolor": "none", "pad": 3}
    middle: dict[str, Any] = {"color": "white", "ha": "center", "fontsize": 9.5, "bbox": box}
    axes.text(0.5, (hot * hottest**2) ** (1 / 3), "hot: near uniform at every λ", **middle)
    axes.text(0.5, (hot * coldest**2) ** (1 / 3), "sharp", **middle)
    arrow = {"arrowstyle": "->", "color": style.INK, "lw": 1.3}
    for text, place, point in (
        ("vanishing: all $λ^i$ near 0", 0.2, 0.06),
        ("constant: all $λ^i$ near 1", 0.8, 0.975),
    ):
        axes.annotate(
            text, (point, 0.5 * hot), (place, 2.4 * hot), arrowprops=arrow, va="center", **middle
        )


def _slices(axes: Axes, result: Result, found: dict[str, Any]) -> None:
    base, temperature = result.arrays["base"], result.arrays["temperature"]
    for wanted in SLICES:
        row = int(np.argmin(np.abs(np.log(temperature / wanted))))
        axes.plot(base, result.arrays["entropy"][row], lw=1.7, label=f"θ = {temperature[row]:.2g}")
    axes.axhline(found["largest_entropy"], color=style.INK, lw=0.9, ls=":")
    axes.annotate(
        "uniform", (0.5, found["largest_entropy"]), (0, 4), textcoords="offset points", fontsize=9
    )
    axes.axhline(found["sharp_below_entropy"], color=style.INK, lw=0.9, ls="--")
    axes.annotate(
        "sharp below",
        (0.45, found["sharp_below_entropy"]),
        (0, -12),
        textcoords="offset points",
        fontsize=9,
    )
    axes.set(xlabel="λ", ylabel="entropy (nats)", xlim=(0, 1), ylim=(0, None))
    axes.set_title("six temperatures: both edges are uniform")
    axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
