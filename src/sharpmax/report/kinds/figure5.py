"""Figure 5: when is the softmax of a power series sharp? Entropy over base and temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sharpmax.report.blocks import (
    Axis,
    Chart,
    Column,
    Content,
    Frames,
    Line,
    Region,
    Rule,
    Table,
    Verdict,
)
from sharpmax.report.numbers import join, percent
from sharpmax.results import Result, schemas

SLICES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
PIXELS = 120
"""Of the plane in each direction: as much as a screen shows of it."""


def describe(result: Result) -> Content:
    series = schemas.Figure5.of(result)
    shares = [f"{name} {percent(share, 0)}" for name, share in series.share_of_plane.items()]
    hot = series.hot_from_temperature
    warm = "" if hot is None else f" From a temperature of {hot:.2g} on, no base is sharp."
    slices = _slices(result, series)
    return Content(
        what="Figure 5: a power series",
        title=f"Entropy of the softmax of λ, λ², … , λ^{series.elements}",
        facts=[
            f"{series.elements} logits",
            f"temperatures {series.coldest:g} to {series.hottest:g}",
        ],
        sentences=[
            f"The plane of base and temperature has four regions: {join(shares)}.",
            "At both edges, λ = 0 and λ = 1, all logits are equal, and the entropy is "
            f"{series.entropy_at_base_0:.2f} nats at every temperature.{warm}",
        ],
        verdict=Verdict(
            "neutral",
            "Rows of one entropy may be warm or cold: entropy alone does not tell how much to "
            "sharpen them.",
            command="sharpmax reproduce figure6",
        ),
        blocks=[_plane(result, series), slices, _table(series)],
    )


def _thin_out(size: int) -> np.ndarray:
    """Return at most `PIXELS` indices, both ends among them."""
    return np.unique(np.linspace(0, size - 1, min(size, PIXELS)).round().astype(int))


def _plane(result: Result, series: schemas.Figure5) -> Frames:
    base, temperature = result.arrays["base"], result.arrays["temperature"]
    columns, rows = _thin_out(base.size), _thin_out(temperature.size)[::-1]
    entropy = result.arrays["entropy"][np.ix_(rows, columns)]
    return Frames(
        title="Entropy over base and temperature",
        captions=[""],
        frames=[np.round(entropy, 3).tolist()],
        rows=[f"θ = {temperature[row]:.3g}" for row in rows],
        columns=[f"λ = {base[column]:.3f}" for column in columns],
        ends=(0.0, series.largest_entropy),
        unit="nats",
        digits=2,
        text="Temperature θ upwards on a logarithmic scale, λ to the right.",
        wide=True,
        sides=("temperature θ", "λ"),
        ticks=(
            _ticks(np.log10(temperature[rows]), {n: f"{10.0**n:g}" for n in range(-9, 9)}),
            _ticks(base[columns], {n / 10: f"{n / 10:g}" for n in range(0, 11, 2)}),
        ),
        contour=series.sharp_below_entropy,
        regions=_regions(series),
    )


def _ticks(values: np.ndarray, labels: Mapping[float, str]) -> dict[int, str]:
    """Return the index nearest to each labelled value that lies within the values."""
    low, high = values.min() - 1e-9, values.max() + 1e-9
    return {
        int(np.argmin(np.abs(values - at))): label
        for at, label in labels.items()
        if low <= at <= high
    }


def _regions(series: schemas.Figure5) -> list[Region]:
    hot = series.hot_from_temperature
    if hot is None:
        return []
    border = math.log(series.hottest / hot) / math.log(series.hottest / series.coldest)
    return [
        Region("hot", 0.5, border / 2),
        Region("sharp", 0.5, (1 + border) / 2),
        Region("vanishing", 0.05, border + 0.15, upright=True),
        Region("constant", 0.97, border + 0.15, upright=True),
    ]


def _slices(result: Result, series: schemas.Figure5) -> Chart:
    base, temperature = result.arrays["base"], result.arrays["temperature"]
    columns = _thin_out(base.size)
    lines = []
    for wanted in SLICES:
        row = int(np.argmin(np.abs(np.log(temperature / wanted))))
        values = result.arrays["entropy"][row, columns].tolist()
        lines.append(Line(f"θ = {temperature[row]:.2g}", base[columns].tolist(), values, marks=0))
    return Chart(
        "Entropy at six temperatures",
        Axis("λ", digits=3, low=0, high=1, noun="(λ)"),
        Axis("entropy, nats", digits=2, unit="nats", low=0),
        lines,
        [
            Rule("y", series.largest_entropy, "uniform"),
            Rule("y", series.sharp_below_entropy, "sharp below"),
        ],
        "Both edges are uniform.",
    )


def _table(series: schemas.Figure5) -> Table:
    meaning = {
        "sharp": "fewer than half of the items count in effect",
        "hot": "too hot to be sharp at any λ",
        "vanishing": "all powers of λ are near 0",
        "constant": "all powers of λ are near 1",
    }
    columns = [Column("Region"), Column("Share of the plane, %", 1), Column("Why")]
    rows = [
        [name, 100 * share, meaning.get(name, "")] for name, share in series.share_of_plane.items()
    ]
    return Table("The four regions", columns, rows)
