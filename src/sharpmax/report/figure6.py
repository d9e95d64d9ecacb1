"""Figure 6: which inverse temperature would have served best, and polynomials through it."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Line, Table
from sharpmax.report.numbers import counted, joined, percent
from sharpmax.results import Result

FITS = {
    "temperature": ("our fit to the temperatures", "series-2"),
    "inverse temperature": ("our fit to the inverse temperatures", "series-3"),
    "paper": ("the paper's polynomial", "series-1"),
}
MOST = 8.0
"""The highest inverse temperature shown."""
FARTHEST = 6.6


def content(result: Result) -> Content:
    found = result.measurements
    leading = {int(size): share for size, share in found["leading"].items()}
    first, last = min(leading), max(leading)
    sharpens = [f"{FITS[name][0]} for {_ranges(found, name)}" for name in FITS]
    return Content(
        what="Figure 6: the best inverse temperature",
        title="The inverse temperature that gives the true maximum most weight",
        facts=[
            f"{found['points']:,} sets",
            f"{counted(len(result.seeds), 'head')}",
            f"polynomials of degree {result.config['degree']}",
        ],
        findings=[
            f"The maximum has the largest logit in {percent(leading[first], 0)} of sets of "
            f"{first:,} items and in {percent(leading[last], 0)} of sets of {last:,}; there, the "
            "colder the better.",
            "Where it has not, one temperature is best. Sharpening, by entropy: "
            f"{joined(sharpens)}.",
        ],
        advice=[],
        blocks=[_cloud(result), _leading(leading), _table(found)],
    )


def _ranges(found: dict[str, Any], name: str) -> str:
    return joined([f"{low:.2f} to {high:.2f} nats" for low, high in found["sharpens"][name]])


def _cloud(result: Result) -> Chart:
    found = result.measurements
    entropy, best = result.arrays["entropy"], result.arrays["best"]
    shown = np.isfinite(best) & (best > 0) & (best <= MOST)
    above = int((best[np.isfinite(best)] > MOST).sum())
    points = Line(
        "a set whose maximum does not lead",
        np.round(entropy[shown], 3).tolist(),
        np.round(best[shown], 3).tolist(),
        colour="other",
        dash="none",
        marks=1.8,
    )
    lines = []
    for name, (label, colour) in FITS.items():
        low, high = (0.0, FARTHEST) if name == "paper" else found["entropies"]
        at = np.linspace(low, high, 100)
        value = np.maximum(np.polyval(found["coefficients"][name], at), 1.0)
        value = np.where(at > found["threshold"], value, 1.0)
        lines.append(Line(label, at.tolist(), value.tolist(), colour=colour, marks=0))
    return Chart(
        "Maximum not on top: one best temperature",
        Axis("entropy of the set's attention, nats", digits=2, noun="nats", low=0),
        Axis("inverse temperature", digits=2, low=0, high=MOST),
        [points, *lines],
        text=f"{counted(int(shown.sum()), 'set')}; {above:,} more lie above.",
        single=True,
    )


def _leading(leading: dict[int, float]) -> Chart:
    shares = [100 * share for share in leading.values()]
    return Chart(
        "Maximum on top: the colder the better",
        Axis("items in the set", scale="log", noun="items", ticks=list(leading)),
        Axis("sets whose maximum leads, %", digits=1, unit="%", low=0, high=104),
        [Line("sets whose maximum leads", list(leading), shares)],
    )


def _table(found: dict[str, Any]) -> Table:
    columns = [Column("Polynomial"), Column("Coefficients, highest power first")]
    columns += [Column("Sharpens"), Column("Error of the temperature", 2)]
    rows = [
        [
            FITS[name][0],
            ", ".join(f"{value:.4g}" for value in coefficients),
            _ranges(found, name),
            found["temperature_error"][name],
        ]
        for name, coefficients in found["coefficients"].items()
    ]
    return Table("Inverse temperature as a polynomial of the entropy", columns, rows)
