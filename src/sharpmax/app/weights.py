"""What each normaliser makes of one row of logits, beside what theory allows softmax to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from sharpmax import theory
from sharpmax._errors import UserError
from sharpmax.app.typed import MOST_ITEMS
from sharpmax.normalisers import NORMALISERS
from sharpmax.report.blocks import Axis, Chart, Column, Group, Line, Rule, Table
from sharpmax.report.numbers import plural
from sharpmax.report.renderers.html import fragment

POINTS = 160
"""Of a line: as many as a screen can show apart."""
MARKED = 40
"""Items up to which each has a mark of its own."""
SIZES = np.unique(np.geomspace(2, MOST_ITEMS, 60).round())
HALF = 0.5
FAR = 1e15
"""Items that nobody counts."""

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Given:
    """The weights of one normaliser and what is said of them."""

    name: str
    weights: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """As shares of all weight: some normalisers give more or less than 1, some less than 0."""
        size = np.abs(self.weights)
        total = size.sum()
        return size / total if total > 0 else size

    @property
    def entropy(self) -> float:
        positive = self.shares[self.shares > 0]
        return float(-(positive * np.log(positive)).sum()) if positive.size else 0.0


def give(row: np.ndarray, temperature: float, names: Sequence[str]) -> list[Given]:
    """The row divided by the temperature, under each normaliser that can take a single row."""
    return [
        Given(name, np.asarray(NORMALISERS[name](row / temperature)))
        for name in names
        if NORMALISERS[name].needs is None
    ]


def html(row: np.ndarray, temperature: float, names: Sequence[str], scale: Scale) -> Markup:
    """The charts, the bounds and the numbers."""
    if not names:
        raise UserError("choose at least one normaliser")
    given = give(row, temperature, [name for name in NORMALISERS if name in names])
    notes = [
        f"{name} is not drawn: it needs {NORMALISERS[name].needs}, and here is one row."
        for name in names
        if NORMALISERS[name].needs is not None
    ]
    spread = float(np.ptp(row))
    blocks = [
        *([_weights(row, given, scale)] if given else []),
        _bounds(row.size, spread, temperature, given),
        *([_table(given)] if given else []),
    ]
    return fragment(sentences(row.size, spread, temperature), blocks, notes)


def sentences(count: int, spread: float, temperature: float) -> list[str]:
    """What theory says of any row with so many items and this spread."""
    low, high = theory.weight_bounds(count, spread, temperature)
    least = theory.minimum_entropy(count, spread, temperature)
    until = theory.items_until_dispersed(spread, HALF, temperature)
    when = f"From {until:,.0f} items on" if until <= FAR else f"Only beyond {FAR:.0e} items"
    return [
        f"{plural(count, 'item')} whose logits differ by at most {spread:.3g}, at temperature "
        f"{temperature:.3g}: softmax gives each a weight from {_tiny(low)} to {_tiny(high)}, and "
        f"its entropy is at least {least:.3f} of {np.log(count):.3f} nats. {when} no weight can "
        "reach one half."
    ]


def _tiny(weight: float) -> str:
    return f"{weight:.4f}" if weight >= 0.001 else f"{weight:.2g}"


def _weights(row: np.ndarray, given: Sequence[Given], scale: Scale) -> Chart:
    order = np.argsort(-row, kind="stable")
    ranks = np.unique(np.geomspace(1, row.size, min(row.size, POINTS)).round().astype(int))
    if row.size <= MARKED:
        ranks = np.arange(1, row.size + 1)
    lines = [
        Line(
            one.name,
            ranks.tolist(),
            _shown(one.weights[order[ranks - 1]], scale),
            marks=2.5 if row.size <= MARKED else 0,
        )
        for one in given
    ]
    return Chart(
        "Weights",
        Axis("items by their logits, the largest first", _along(row.size), noun="by logit"),
        Axis("weight", scale, digits=6, low=None if scale == "log" else _floor(given)),
        lines,
        text="Press a name to hide its line; point at a line to read it.",
    )


def _along(count: int) -> Literal["linear", "log"]:
    return "linear" if count <= MARKED else "log"


def _floor(given: Sequence[Given]) -> float | None:
    return 0.0 if all((one.weights >= 0).all() for one in given) else None


def _shown(values: np.ndarray, scale: Scale) -> list[float | None]:
    """A logarithmic axis has no place for 0, nor for what is below."""
    return [None if scale == "log" and value <= 0 else float(value) for value in values]


def _bounds(count: int, spread: float, temperature: float, given: Sequence[Given]) -> Group:
    low, high = theory.weight_bounds(SIZES, np.full_like(SIZES, spread), temperature)
    least = theory.minimum_entropy(SIZES, np.full_like(SIZES, spread), temperature)
    sizes = Axis("items", "log", noun="items")
    here = [Rule("x", float(count), f"{count:,}")]
    largest = Chart(
        "Largest weight, and the most that theory allows",
        sizes,
        Axis("weight", digits=4, low=0, high=1.04),
        [
            *_points(count, given, [float(one.weights.max()) for one in given]),
            _theory("at most (softmax)", high),
            _theory("at least (softmax)", low),
        ],
        here,
    )
    entropy = Chart(
        "Entropy, and the least that theory allows",
        sizes,
        Axis("nats", digits=3, unit="nats", low=0),
        [
            *_points(count, given, [one.entropy for one in given]),
            _theory("uniform", np.log(SIZES), dash="dot"),
            _theory("least (softmax)", least),
        ],
        here,
    )
    text = (
        "A point is the row above; the lines are what logits of this spread and temperature allow "
        "softmax to do with any number of items."
    )
    return Group("Bounds", [largest, entropy], text)


def _points(count: int, given: Sequence[Given], values: Sequence[float]) -> list[Line]:
    return [
        Line(one.name, [count], [value], dash="none", marks=5)
        for one, value in zip(given, values, strict=True)
    ]


def _theory(name: str, values: np.ndarray, dash: Literal["dash", "dot"] = "dash") -> Line:
    return Line(name, SIZES.tolist(), values.tolist(), dash=dash, marks=0, colour="muted")


def _table(given: Sequence[Given]) -> Table:
    columns = [
        Column("Normaliser"),
        Column("Largest weight", 4),
        Column("Entropy, nats", 3),
        Column("Effective items", 1),
        Column("Sum", 3),
        Column("Zero weights", 0),
    ]
    rows: list[list[Any]] = [
        [
            one.name,
            float(one.weights.max()),
            one.entropy,
            float(np.exp(one.entropy)),
            float(one.weights.sum()),
            int((one.weights == 0).sum()),
        ]
        for one in given
    ]
    text = (
        "Entropy is that of the weights as shares of all, without their signs; effective items are "
        "its exponential."
    )
    return Table("Numbers", columns, rows, text)
