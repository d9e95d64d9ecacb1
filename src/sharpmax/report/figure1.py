"""Figure 1: a head's weights as its input grows, against what Lemma 2.1 allows."""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import Axis, Chart, Column, Content, Line, Rule, Table
from sharpmax.report.numbers import counted, percent
from sharpmax.results import Result


def content(result: Result) -> Content:
    found, config = result.measurements, result.config
    shown = zip(config["shown_sizes"], found["shown_weights"], strict=True)
    needles = {size: weights[0] for size, weights in shown}
    first, last = min(needles), max(needles)
    return Content(
        what="Figure 1: one head, growing input",
        title="One softmax head, one fixed vocabulary",
        facts=[
            f"vocabulary of {counted(config['vocabulary'], 'token')}",
            f"logits within {config['spread']:g} of each other",
            f"{counted(config['repeats'], 'random input')} a size",
        ],
        findings=[
            f"The token of largest logit, the needle, has {percent(needles[first], 0)} of the "
            f"weight among {first:,} items and {percent(needles[last], 1)} among {last:,}.",
            f"From {found['dispersed_from']:,.0f} items on no head of that spread can give any "
            f"item {config['epsilon']:g}, whatever the input.",
        ],
        advice=[],
        blocks=[_weights(found, config), _entropy(found), _table(found)],
    )


def _sizes() -> Axis:
    return Axis("items n", scale="log", noun="items")


def _weights(found: dict[str, Any], config: dict[str, Any]) -> Chart:
    sizes = found["sizes"]
    bound: dict[str, Any] = {"marks": 0, "colour": "series-1"}
    printed: dict[str, Any] = {"marks": 0, "colour": "series-3", "dash": "dash"}
    lines = [
        Line("most possible", sizes, found["tight_high"], **bound),
        Line("least possible", sizes, found["tight_low"], **bound),
        Line("Lemma 2.1 as printed, most", sizes, found["paper_high"], **printed),
        Line("Lemma 2.1 as printed, least", sizes, found["paper_low"], **printed),
        _ranged("needle", sizes, found["needle_weight"], "series-2"),
        _ranged("smallest weight", sizes, found["smallest_weight"], "series-4"),
        Line("uniform, 1 / n", sizes, [1 / n for n in sizes], colour="ink", dash="dot", marks=0),
    ]
    return Chart(
        "Weights and their bounds",
        _sizes(),
        Axis("attention weight", scale="log", digits=4, low=1e-9, high=3),
        lines,
        [Rule("x", found["dispersed_from"], f"no weight can reach {config['epsilon']:g}")],
        "Mean and range over the random inputs.",
    )


def _ranged(name: str, sizes: list[int], samples: list[list[float]], colour: str) -> Line:
    means = [sum(one) / len(one) for one in samples]
    low, high = [min(one) for one in samples], [max(one) for one in samples]
    return Line(name, sizes, means, low, high, colour=colour)


def _entropy(found: dict[str, Any]) -> Chart:
    sizes = found["sizes"]
    least = Line("least possible", sizes, found["minimum_entropy"], marks=0)
    lines = [_ranged("measured", sizes, found["entropy"], "series-2"), least]
    return Chart("Entropy", _sizes(), Axis("nats", digits=2, unit="nats"), lines)


def _table(found: dict[str, Any]) -> Table:
    columns = [Column("Items", 0), Column("Needle", 5), Column("Most possible", 5)]
    columns += [Column("Entropy, nats", 3), Column("Least possible, nats", 3)]
    rows = [
        [
            size,
            sum(found["needle_weight"][place]) / len(found["needle_weight"][place]),
            found["tight_high"][place],
            sum(found["entropy"][place]) / len(found["entropy"][place]),
            found["minimum_entropy"][place],
        ]
        for place, size in enumerate(found["sizes"])
    ]
    return Table("By size", columns, rows, "Means over the random inputs.")
