"""Figure 6: which inverse temperature would have served best, and polynomials through it."""

from __future__ import annotations

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Line, Rule, Table, Verdict
from sharpmax.report.numbers import join, percent, plural
from sharpmax.report.palette import METHODS
from sharpmax.results import Result, schemas

FITS = {
    "paper": ("the paper's polynomial", METHODS["paper"]),
    "temperature": ("our fit to the temperatures", METHODS["refitted-temperature"]),
    "inverse temperature": (
        "our fit to the inverse temperatures",
        METHODS["refitted-inverse-temperature"],
    ),
}
HIGHEST = 8.0
"""The highest inverse temperature shown."""
FARTHEST = 6.6
"""The highest entropy shown, in nats."""


def describe(result: Result) -> Content:
    fits = schemas.Figure6.of(result)
    first, last = min(fits.leading), max(fits.leading)
    return Content(
        what="Figure 6: the best inverse temperature",
        title="The inverse temperature that gives the true maximum most weight",
        facts=[
            f"{fits.points:,} sets",
            plural(len(fits.seeds), "head"),
            f"polynomials of degree {fits.degree}",
        ],
        sentences=[
            f"The maximum has the largest logit in {percent(fits.leading[first], 0)} of the sets "
            f"of {first:,} items and in {percent(fits.leading[last], 0)} of the sets of {last:,}. "
            "In these sets, colder is always better.",
            "In the other sets one temperature is best. The paper's polynomial sharpens at "
            f"{_ranges(fits, 'paper')} only.",
        ],
        verdict=Verdict(
            "mixed",
            f"The paper's polynomial leaves every row alone whose entropy is outside "
            f"{_ranges(fits, 'paper')}.",
            command="sharpmax reproduce policies",
        ),
        blocks=[_cloud(result, fits), _leading(fits), _table(fits)],
    )


def _ranges(fits: schemas.Figure6, name: str) -> str:
    return join([f"{low:.2f} to {high:.2f} nats" for low, high in fits.sharpens[name]])


def _cloud(result: Result, fits: schemas.Figure6) -> Chart:
    entropy, best = result.arrays["entropy"], result.arrays["best"]
    shown = np.isfinite(best) & (best > 0) & (best <= HIGHEST)
    above = int((best[np.isfinite(best)] > HIGHEST).sum())
    points = Line(
        "a set whose maximum does not have the largest logit",
        np.round(entropy[shown], 3).tolist(),
        np.round(best[shown], 3).tolist(),
        colour="other",
        dash="none",
        marks=1.8,
    )
    lines = []
    for name, (label, look) in FITS.items():
        low, high = (0.0, FARTHEST) if name == "paper" else fits.entropies
        at = np.linspace(low, high, 100)
        value = np.maximum(np.polyval(fits.coefficients[name], at), 1.0)
        value = np.where(at > fits.threshold, value, 1.0)
        lines.append(Line.of(look, at.tolist(), value.tolist(), name=label, marks=0))
    return Chart(
        "Maximum not on top: one temperature is best",
        Axis("entropy of the set's attention, nats", digits=2, noun="nats", low=0),
        Axis("inverse temperature", digits=2, low=0, high=HIGHEST),
        [points, *lines],
        [Rule("y", 1, "no sharpening")],
        text=f"Grey: {plural(int(shown.sum()), 'set')} whose maximum does not have the largest "
        f"logit; {above:,} more lie above.",
        single=True,
    )


def _leading(fits: schemas.Figure6) -> Chart:
    return Chart(
        "Maximum on top: the colder the better",
        Axis("items in the set", scale="log", noun="items", ticks=list(fits.leading)),
        Axis("sets whose maximum has the largest logit, %", digits=1, unit="%", low=0, high=104),
        [
            Line(
                "maximum on top",
                list(fits.leading),
                [100 * share for share in fits.leading.values()],
            )
        ],
    )


def _table(fits: schemas.Figure6) -> Table:
    columns = [
        Column("Polynomial"),
        Column("Coefficients, highest power first"),
        Column("Sharpens at"),
        Column("Error of the temperature", 2, "lower"),
    ]
    rows = [
        [
            label,
            ", ".join(f"{value:.4g}" for value in fits.coefficients[name]),
            _ranges(fits, name),
            fits.temperature_error[name],
        ]
        for name, (label, _) in FITS.items()
    ]
    return Table("Inverse temperature as a polynomial of the entropy", columns, rows)
