"""Figure 1: a head's weights as its input grows, against what Lemma 2.1 allows."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Group, Line, Rule, Table, Verdict
from sharpmax.report.numbers import plural, share
from sharpmax.results import Result, schemas

SHOWN = 32
"""Columns of a bar chart: with more they would be thinner than a line."""


def describe(result: Result) -> Content:
    head = schemas.Figure1.of(result)
    first, last = min(head.shown_sizes), max(head.shown_sizes)
    return Content(
        what="Figure 1: one head, growing input",
        title="One softmax head: sharp on short inputs, dispersed on long ones",
        facts=[
            f"vocabulary of {plural(head.vocabulary, 'token')}",
            f"logits within {head.spread:g} of each other",
            f"{plural(head.repeats, 'random input')} per size",
        ],
        sentences=[
            "The needle is the token with the largest logit. Its weight is "
            f"{needle_weight(head, first)} among {first:,} items and {needle_weight(head, last)} "
            f"among {last:,} (mean ± standard deviation over {head.repeats} random inputs).",
            f"From {head.dispersed_from:,.0f} items on, no head of that spread can give any item a "
            f"weight of {head.epsilon:g}, whatever the input.",
        ],
        verdict=Verdict(
            "neutral",
            "This holds for any head whose logits are bounded. Whether a head of your model is "
            "affected at your lengths has to be measured.",
            command="sharpmax scan MODEL",
        ),
        blocks=[_columns(head), _weights(head), _entropy(head), _table(head)],
        picture=[_columns(head), _weights(head)],
    )


def needle_weight(head: schemas.Figure1, size: int) -> str:
    """Format the needle's weight among so many items: mean ± standard deviation over inputs."""
    weights = np.asarray(head.needle_weight[head.sizes.index(size)])
    spread = float(weights.std(ddof=1)) if weights.size > 1 else None
    return f"{share(float(weights.mean()), spread)} %"


def _sizes() -> Axis:
    return Axis("items n", scale="log", noun="items")


def _columns(head: schemas.Figure1) -> Group:
    """Draw a few inputs: the needle, and the other items by weight."""
    bars: dict[str, Any] = {"spread": "columns", "dash": "none", "marks": 0}
    charts = []
    for size, (needle, *weights) in zip(head.shown_sizes, head.shown_weights, strict=True):
        others = sorted(weights, reverse=True)[: SHOWN - 1]
        ranks = list(range(1, len(others) + 1))
        lines = [
            Line("needle", [0], [needle], [0], [needle], colour="series-2", **bars),
            Line("other items", ranks, others, [0] * len(others), others, colour="muted", **bars),
        ]
        shown = "all items" if size <= SHOWN else f"the {SHOWN} largest weights"
        x = Axis(shown, noun="(rank)", low=-1, high=SHOWN, ticks=[])
        y = Axis("attention weight", digits=3, low=0, high=1, ticks=[0, 0.5, 1])
        charts.append(Chart(f"{size:,} items: needle {needle:.2f}", x, y, lines))
    text = "The first random input of each size; the other charts show all inputs."
    return Group("Weights on inputs of growing size", charts, text, columns=len(charts))


def _weights(head: schemas.Figure1) -> Chart:
    tight: dict[str, Any] = {"marks": 0, "colour": "series-1"}
    printed: dict[str, Any] = {"marks": 0, "colour": "series-3", "dash": "dash"}
    lines = [
        Line("bound, tight", head.sizes, head.tight_high, **tight),
        Line("bound, tight", head.sizes, head.tight_low, **tight),
        Line("bound, Lemma 2.1 as printed", head.sizes, head.paper_high, **printed),
        Line("bound, Lemma 2.1 as printed", head.sizes, head.paper_low, **printed),
        _range_line("needle", head.sizes, head.needle_weight, "series-2"),
        _range_line("smallest weight", head.sizes, head.smallest_weight, "muted"),
        Line(
            "uniform, 1 / n",
            head.sizes,
            [1 / size for size in head.sizes],
            colour="ink",
            dash="dot",
            marks=0,
        ),
    ]
    text = f"from {head.dispersed_from:,.0f} items no weight can reach {head.epsilon:g}"
    return Chart(
        "Weights and their bounds",
        _sizes(),
        Axis("attention weight", scale="log", digits=4, low=1e-9, high=3),
        lines,
        [Rule("x", head.dispersed_from, text)],
        "Mean over the random inputs; band: range.",
    )


def _range_line(name: str, sizes: list[int], samples: list[list[float]], colour: str) -> Line:
    means = [sum(values) / len(values) for values in samples]
    low, high = [min(values) for values in samples], [max(values) for values in samples]
    return Line(name, sizes, means, low, high, colour=colour)


def _entropy(head: schemas.Figure1) -> Chart:
    lines = [
        _range_line("measured", head.sizes, head.entropy, "series-2"),
        Line("smallest possible", head.sizes, head.minimum_entropy, colour="series-1", marks=0),
    ]
    return Chart("Entropy", _sizes(), Axis("nats", digits=2, unit="nats"), lines)


def _table(head: schemas.Figure1) -> Table:
    columns = [
        Column("Items", 0),
        Column("Needle", 5),
        Column("Largest possible", 5),
        Column("Entropy, nats", 3),
        Column("Smallest possible, nats", 3),
    ]
    rows = [
        [size, sum(needle) / len(needle), high, sum(entropy) / len(entropy), least]
        for size, needle, high, entropy, least in zip(
            head.sizes,
            head.needle_weight,
            head.tight_high,
            head.entropy,
            head.minimum_entropy,
            strict=True,
        )
    ]
    return Table("By size", columns, rows, "Means over the random inputs.")
