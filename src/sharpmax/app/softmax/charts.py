"""Charts of what each normaliser does with one row of logits, beside the bounds of theory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from sharpmax import theory
from sharpmax._errors import UserError
from sharpmax.app.input_parsing import MAX_ITEMS
from sharpmax.normalisers import NORMALISERS
from sharpmax.ops import entropy
from sharpmax.policies import PAPER, inverse_temperatures
from sharpmax.report.blocks import Axis, Block, Chart, Column, Group, Line, Rule, Table
from sharpmax.report.numbers import join, plural
from sharpmax.report.palette import METHODS
from sharpmax.report.renderers.html import fragment

MAX_POINTS = 160
"""Points of a line; a screen cannot show more."""
MAX_MARKS = 40
"""Number of items up to which each has its own mark."""
SIZES = np.unique(np.geomspace(2, MAX_ITEMS, 60).round())
"""Numbers of items at which the bounds are drawn."""
MAX_COUNT = 1e15
"""Number of items above which only the order of magnitude is printed."""

Scale = Literal["linear", "log"]
WEIGHT_ENDS: dict[Scale, tuple[float, float]] = {"linear": (0.0, 1.04), "log": (1e-9, 2.0)}
"""The ends of the axis of weights, for normalisers whose weights are shares."""


@dataclass(frozen=True)
class NormaliserOutput:
    """The weights that one normaliser gives to a row."""

    name: str
    weights: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """The weights without sign, divided by their sum: some normalisers do not sum to 1."""
        size = np.abs(self.weights)
        total = size.sum()
        return size / total if total > 0 else size

    @property
    def entropy(self) -> float:
        positive = self.shares[self.shares > 0]
        return float(-(positive * np.log(positive)).sum()) if positive.size else 0.0


def apply_normalisers(
    row: np.ndarray, temperature: float, names: Sequence[str]
) -> list[NormaliserOutput]:
    """Apply each normaliser that works on a single row to the row divided by the temperature."""
    return [
        NormaliserOutput(name, np.asarray(NORMALISERS[name](row / temperature)))
        for name in names
        if NORMALISERS[name].needs is None
    ]


def render_row(row: np.ndarray, temperature: float, names: Sequence[str], scale: Scale) -> Markup:
    """Return the weights, the bounds and a table for one row of logits."""
    if not names:
        raise UserError("choose at least one normaliser")
    outputs = apply_normalisers(row, temperature, [name for name in NORMALISERS if name in names])
    notes = [
        *_off_note(row, temperature, names),
        *(
            f"{name} is not drawn: it needs {NORMALISERS[name].needs}, and there is only one row."
            for name in names
            if NORMALISERS[name].needs is not None
        ),
    ]
    spread = float(np.ptp(row))
    blocks: list[Block] = [
        *([_weights_chart(row, outputs, scale)] if outputs else []),
        _bounds_charts(row.size, spread, temperature, outputs),
        *([_table(outputs)] if outputs else []),
    ]
    facts = [*describe_needle(row, outputs), describe_bounds(row.size, spread, temperature)]
    return fragment(facts, blocks, notes)


def describe_needle(row: np.ndarray, outputs: Sequence[NormaliserOutput]) -> list[str]:
    """Say what weight each normaliser gives to the needle, the item of the largest logit."""
    needle = int(row.argmax())
    weights = [
        f"{format_weight(float(output.weights[needle]))} with {METHODS[output.name].name}"
        for output in outputs
    ]
    return [f"The needle, the largest logit, has weight {join(weights)}."] if weights else []


def _off_note(row: np.ndarray, temperature: float, names: Sequence[str]) -> list[str]:
    """Say when the paper's policy leaves the row as it is: its line then hides softmax's."""
    if "adaptive-temperature" not in names:
        return []
    spread_out = float(entropy(row / temperature))
    (factor,) = inverse_temperatures(PAPER, np.array([spread_out]), np.array([row.size]))
    if factor != 1.0:
        return []
    return [
        f"Adaptive temperature is off here: for an entropy of {spread_out:.2f} nats the paper's "
        "polynomial gives the factor 1, so its weights are those of softmax."
    ]


def describe_bounds(count: int, spread: float, temperature: float) -> str:
    """Say what theory allows softmax to do with any row of this size and spread."""
    low, high = theory.weight_bounds(count, spread, temperature)
    least = theory.minimum_entropy(count, spread, temperature)
    limit = theory.items_until_dispersed(spread, 0.5, temperature)
    when = f"From {limit:,.0f} items on" if limit <= MAX_COUNT else f"Beyond {MAX_COUNT:.0e} items"
    return (
        f"{plural(count, 'item')} whose logits differ by at most {spread:.3g}, at temperature "
        f"{temperature:.3g}: softmax gives each a weight from {format_weight(low)} to "
        f"{format_weight(high)}, and its entropy is at least {least:.3f} of {np.log(count):.3f} "
        f"nats. {when}, no weight can reach one half."
    )


def format_weight(weight: float) -> str:
    return f"{weight:.4f}" if weight >= 0.001 else f"{weight:.2g}"


def _weights_chart(row: np.ndarray, outputs: Sequence[NormaliserOutput], scale: Scale) -> Chart:
    """Draw the weights by rank of the logits, on the same axes for every row and size."""
    order = np.argsort(-row, kind="stable")
    few = row.size <= MAX_MARKS
    ranks = np.unique(np.geomspace(1, row.size, min(row.size, MAX_POINTS)).round().astype(int))
    if few:
        ranks = np.arange(1, row.size + 1)
    lines = [
        Line.of(
            METHODS[output.name],
            ranks.tolist(),
            _line_values(output.weights[order[ranks - 1]], scale),
            marks=2.5 if few else 0,
        )
        for output in outputs
    ]
    needles = [_line_values(output.weights[order[:1]], scale)[0] for output in outputs]
    lines.append(
        Line("the needle", [1] * len(needles), needles, colour="last", dash="none", marks=6)
    )
    low, high = WEIGHT_ENDS[scale]
    inside = all(((output.weights >= 0) & (output.weights <= 1)).all() for output in outputs)
    return Chart(
        "Weights",
        Axis(
            "items by logit, largest first",
            "log",
            noun="by logit",
            low=0.8,
            high=1.25 * MAX_ITEMS,
            ticks=[1, 10, 100, 1_000, 10_000],
        ),
        Axis("weight", scale, digits=6, low=low if inside else None, high=high if inside else None),
        lines,
        text="The axes stay the same as n grows. Click a name to hide its line; point at a line to "
        "read its values.",
    )


def _line_values(values: np.ndarray, scale: Scale) -> list[float | None]:
    """Return the values of a line; None where a logarithmic axis cannot show them."""
    lowest = WEIGHT_ENDS[scale][0]
    return [None if scale == "log" and value < lowest else float(value) for value in values]


def _bounds_charts(
    count: int, spread: float, temperature: float, outputs: Sequence[NormaliserOutput]
) -> Group:
    """Draw the largest weight and the entropy of the row beside their bounds at all sizes."""
    low, high = theory.weight_bounds(SIZES, np.full_like(SIZES, spread), temperature)
    least = theory.minimum_entropy(SIZES, np.full_like(SIZES, spread), temperature)
    sizes = Axis("items", "log", noun="items")
    this_size = [Rule("x", float(count), f"{count:,}")]
    largest = Chart(
        "Largest weight, and the largest that theory allows",
        sizes,
        Axis("weight", digits=4, low=0, high=1.04),
        [
            *_points(count, outputs, [float(output.weights.max()) for output in outputs]),
            _bound("upper bound (softmax)", high),
            _bound("lower bound (softmax)", low),
        ],
        this_size,
    )
    entropy = Chart(
        "Entropy, and the smallest that theory allows",
        sizes,
        Axis("nats", digits=3, unit="nats", low=0, high=1.04 * math.log(MAX_ITEMS)),
        [
            *_points(count, outputs, [output.entropy for output in outputs]),
            _bound("uniform", np.log(SIZES), dash="dot"),
            _bound("lower bound (softmax)", least),
        ],
        this_size,
    )
    text = (
        "Points: the row above. Lines: what theory allows softmax with logits of this spread and "
        "temperature, for any number of items."
    )
    return Group("Bounds", [largest, entropy], text)


def _points(count: int, outputs: Sequence[NormaliserOutput], values: Sequence[float]) -> list[Line]:
    return [
        Line.of(METHODS[output.name], [count], [value], dash="none", marks=5)
        for output, value in zip(outputs, values, strict=True)
    ]


def _bound(name: str, values: np.ndarray, dash: Literal["dash", "dot"] = "dash") -> Line:
    return Line(name, SIZES.tolist(), values.tolist(), dash=dash, marks=0, colour="muted")


def _table(outputs: Sequence[NormaliserOutput]) -> Table:
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
            METHODS[output.name].name,
            float(output.weights.max()),
            output.entropy,
            float(np.exp(output.entropy)),
            float(output.weights.sum()),
            int((output.weights == 0).sum()),
        ]
        for output in outputs
    ]
    text = (
        "Entropy is that of the absolute weights divided by their sum; effective items are its "
        "exponential."
    )
    return Table("Numbers", columns, rows, text)
