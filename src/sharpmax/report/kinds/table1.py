"""Table 1: does adaptive temperature find the maximum of larger sets? Ours beside the paper's."""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import (
    Axis,
    Cell,
    Chart,
    Column,
    Content,
    Group,
    Line,
    Rule,
    Table,
    Verdict,
)
from sharpmax.report.kinds._shared import (
    accuracy_axis,
    percents,
    share_cell,
    share_line,
    size_axis,
)
from sharpmax.report.numbers import p_value, percent, plural, points
from sharpmax.report.palette import METHODS
from sharpmax.results import Result, schemas

COMPARED = ("baseline", "adaptive")
CAUSES = {
    "dispersion": "dispersion: the largest logit is right, the answer wrong",
    "ranking": "ranking: the largest logit is wrong",
}


def describe(result: Result) -> Content:
    table = schemas.Table1.of(result)
    training = table.training
    return Content(
        what="Table 1: max retrieval",
        title="Finding the maximum of growing sets",
        facts=[
            f"{plural(len(table.seeds), 'head')} trained on sets of {training.smallest} to "
            f"{training.largest} items",
            f"{training.steps:,} steps",
            f"{table.sets:,} sets of each size",
        ],
        sentences=_sentences(table),
        verdict=Verdict(
            "mixed",
            "Adaptive temperature recovers some of what dispersion loses and nothing of what "
            "ranking loses.",
            ["A head whose largest logit is wrong needs other training, not sharpening."],
            command="sharpmax leaderboard",
        ),
        blocks=[_accuracy(table), _causes(table), _table(table)],
    )


def _sentences(table: schemas.Table1) -> list[str]:
    sizes, softmax, adaptive = table.sizes, table.mean["baseline"], table.mean["adaptive"]
    gains = [after - before for before, after in zip(softmax, adaptive, strict=True)]
    best = max(range(len(sizes)), key=lambda index: gains[index])
    sentences = [
        f"Softmax finds the maximum of {sizes[0]:,} items in {percent(softmax[0])} of the sets and "
        f"of {sizes[-1]:,} items in {percent(softmax[-1])}.",
        f"Adaptive temperature gains most at {sizes[best]:,} items: {points(gains[best])} points "
        f"(p = {p_value(table.p[best])}), from {percent(softmax[best])} to "
        f"{percent(adaptive[best])}.",
    ]
    for name, verb in (("baseline", "Softmax loses"), ("adaptive", "Adaptive temperature loses")):
        lost = table.attribution[name]
        sentences.append(
            f"{verb} {percent(lost.dispersion[-1])} of the sets of {sizes[-1]:,} items to "
            f"dispersion and {percent(lost.ranking[-1])} to ranking."
        )
    distances = {
        size: abs(100 * softmax[sizes.index(size)] - row.baseline)
        for size, row in table.paper.items()
        if size in sizes
    }
    if distances:
        farthest = max(distances, key=lambda size: distances[size])
        sentences.append(
            f"Our softmax and the paper's differ most at {farthest:,} items, by "
            f"{distances[farthest]:.1f} points."
        )
    return sentences


def _accuracy(table: schemas.Table1) -> Chart:
    lines = [
        share_line(METHODS[name], table.sizes, table.mean[name], table.std[name])
        for name in ("baseline", "adaptive", "argmax")
    ]
    for name in COMPARED:
        look, printed = METHODS[name], [getattr(row, name) for row in table.paper.values()]
        label = f"{look.name}, in the paper"
        lines.append(Line.of(look, list(table.paper), printed, name=label, dash="dot", marks=0))
    return Chart(
        "Accuracy",
        size_axis(table.sizes),
        accuracy_axis(),
        lines,
        [Rule("y", 10, "chance")],
        f"Mean of {plural(len(table.seeds), 'head')}; band: standard deviation.",
    )


def _causes(table: schemas.Table1) -> Group:
    charts = []
    for name in COMPARED:
        lost = table.attribution[name]
        lines = [
            Line(label, table.sizes, percents(getattr(lost, cause)), colour=colour)
            for (cause, label), colour in zip(CAUSES.items(), ("series-4", "series-5"), strict=True)
        ]
        axis = Axis("share of the sets, %", digits=1, unit="%", low=0, high=100)
        title = METHODS[name].name
        charts.append(Chart(title[:1].upper() + title[1:], size_axis(table.sizes), axis, lines))
    return Group("Why answers were wrong", charts)


def _table(table: schemas.Table1) -> Table:
    columns = [
        Column("Items", 0),
        Column("Softmax %", 1, "higher", short="Softmax"),
        Column("Adaptive %", 1, "higher", short="Adaptive"),
        Column("Gain", 1, short=""),
        Column("p", 3),
        Column("Argmax %", 1, short="Argmax"),
        Column("Paper: softmax %", 1, short="Paper"),
        Column("Paper: adaptive %", 1, short="adaptive"),
        Column("Paper: p", 3, short=""),
        Column("How sure of the paper", short="How sure"),
    ]
    rows = []
    for index, size in enumerate(table.sizes):
        softmax, adaptive = (
            share_cell(table.mean[name], table.std[name], index) for name in COMPARED
        )
        argmax = 100 * table.mean["argmax"][index]
        gain = table.mean["adaptive"][index] - table.mean["baseline"][index]
        p, paper = table.p[index], table.paper.get(size)
        printed: list[Any] = [None, None, None, ""]
        if paper is not None:
            paper_p = Cell(paper.p, p_value(paper.p))
            printed = [paper.baseline, paper.adaptive, paper_p, paper.sure]
        gained = Cell(gain, points(gain))
        rows.append([size, softmax, adaptive, gained, Cell(p, p_value(p)), argmax, *printed])
    return Table("Accuracy by size", columns, rows, "Mean ± standard deviation over the heads.")
