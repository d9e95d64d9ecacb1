"""Figure 5: when is the softmax of a power series sharp? Entropy over base and temperature."""

from __future__ import annotations

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Content, Frames, Line
from sharpmax.report.numbers import joined, percent
from sharpmax.results import Result

SLICES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
PIXELS = 120
"""Of the plane, each way: as much as a screen shows of it."""


def content(result: Result) -> Content:
    found, config = result.measurements, result.config
    shares = [f"{name} {percent(share, 0)}" for name, share in found["share_of_plane"].items()]
    hot = found["hot_from_temperature"]
    warm = "" if hot is None else f" From a temperature of {hot:.2g} on no base is sharp."
    return Content(
        what="Figure 5: a power series",
        title=f"Entropy of the softmax of λ, λ², … , λ^{config['elements']}",
        facts=[
            f"{config['elements']} logits",
            f"temperatures {config['coldest']:g} to {config['hottest']:g}",
        ],
        findings=[
            f"Shares of the plane of base and temperature: {joined(shares)}.",
            "At both edges, λ = 0 and λ = 1, all logits are equal, and the entropy is "
            f"{found['entropy_at_base_0']:.2f} nats at every temperature.{warm}",
        ],
        advice=[],
        blocks=[_plane(result), _slices(result)],
    )


def _thinned(size: int) -> np.ndarray:
    """Places of so many of them, both ends among them."""
    return np.unique(np.linspace(0, size - 1, min(size, PIXELS)).round().astype(int))


def _plane(result: Result) -> Frames:
    base, temperature = result.arrays["base"], result.arrays["temperature"]
    columns, rows = _thinned(base.size), _thinned(temperature.size)[::-1]
    entropy = result.arrays["entropy"][np.ix_(rows, columns)]
    return Frames(
        title="The plane",
        captions=["temperature upwards (logarithmic), λ from 0 to 1 to the right"],
        frames=[np.round(entropy, 3).tolist()],
        rows=[f"θ = {temperature[row]:.3g}" for row in rows],
        columns=[f"λ = {base[column]:.3f}" for column in columns],
        ends=(0.0, float(result.measurements["largest_entropy"])),
        unit="nats",
        digits=2,
        text="Point at it to read a value.",
        wide=True,
    )


def _slices(result: Result) -> Chart:
    base, temperature = result.arrays["base"], result.arrays["temperature"]
    columns = _thinned(base.size)
    lines = []
    for wanted in SLICES:
        row = int(np.argmin(np.abs(np.log(temperature / wanted))))
        values = result.arrays["entropy"][row, columns].tolist()
        lines.append(Line(f"θ = {temperature[row]:.2g}", base[columns].tolist(), values, marks=0))
    return Chart(
        "Six temperatures",
        Axis("λ", digits=3, low=0, high=1, noun="(λ)"),
        Axis("entropy, nats", digits=2, unit="nats", low=0),
        lines,
        text="Both edges are uniform.",
    )
