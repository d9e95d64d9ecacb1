"""Does adaptive temperature find the maximum of larger sets? Table 1, ours beside the paper's."""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import Axis, Chart, Column, Content, Group, Line, Rule, Table, Told
from sharpmax.report.numbers import chance, counted, percent, points
from sharpmax.results import Result

NAMES = {
    "baseline": "softmax",
    "adaptive": "adaptive temperature",
    "argmax": "the head's own argmax",
}
CAUSES = {
    "dispersion": "dispersion: largest logit right, answer wrong",
    "ranking": "ranking: largest logit wrong",
}


def content(result: Result) -> Content:
    found, training = result.measurements, result.config["training"]
    return Content(
        what="Table 1: max retrieval",
        title="Finding the maximum of growing sets",
        facts=[
            f"{counted(len(result.config['seeds']), 'head')} trained on sets of "
            f"{training['smallest']} to {training['largest']} items",
            f"{training['steps']:,} steps",
            f"{result.config['sets']:,} sets of each size",
        ],
        findings=_findings(found),
        advice=[
            "Adaptive temperature mends a part of what dispersion loses and none of what ranking "
            "does: a head whose largest logit is wrong needs other training, not sharpening."
        ],
        blocks=[_accuracy(found), _causes(found), _table(found)],
    )


def by_size(sizes: list[int]) -> Axis:
    return Axis("items in the set", scale="log", noun="items", ticks=sizes)


def accuracy_axis() -> Axis:
    return Axis("accuracy, %", digits=1, unit="%", low=0, high=104)


def with_spread(
    name: str, sizes: list[int], mean: list[float], std: list[float] | None, **look: Any
) -> Line:
    """A line of shares as per cent, with its standard deviation as a band."""
    shares = [100 * value for value in mean]
    if std is None:
        return Line(name, sizes, shares, **look)
    low = [100 * (value - spread) for value, spread in zip(mean, std, strict=True)]
    high = [100 * (value + spread) for value, spread in zip(mean, std, strict=True)]
    return Line(name, sizes, shares, low, high, **look)


def _findings(found: dict[str, Any]) -> list[str]:
    sizes, mean, paper = found["sizes"], found["mean"], found["paper"]
    gains = [b - a for a, b in zip(mean["baseline"], mean["adaptive"], strict=True)]
    most = max(range(len(sizes)), key=lambda place: gains[place])
    lost = {name: found["attribution"][name] for name in ("baseline", "adaptive")}
    said = [
        f"Softmax finds the maximum of {sizes[0]:,} items in {percent(mean['baseline'][0])} of "
        f"sets and of {sizes[-1]:,} in {percent(mean['baseline'][-1])}.",
        f"Adaptive temperature gains most at {sizes[most]:,} items: {points(gains[most])} points "
        f"(p = {chance(found['p'][most])}), from {percent(mean['baseline'][most])} to "
        f"{percent(mean['adaptive'][most])}.",
        f"At {sizes[-1]:,} items softmax loses {percent(lost['baseline']['dispersion'][-1])} of "
        f"the sets to dispersion and {percent(lost['baseline']['ranking'][-1])} to ranking, with "
        f"adaptive temperature {percent(lost['adaptive']['dispersion'][-1])} and "
        f"{percent(lost['adaptive']['ranking'][-1])}.",
    ]
    printed = [(place, paper[str(size)]) for place, size in enumerate(sizes) if str(size) in paper]
    if printed:
        place, far = max(
            (
                (place, abs(100 * mean["baseline"][place] - row["baseline"]))
                for place, row in printed
            ),
            key=lambda one: one[1],
        )
        said.append(
            f"The paper's softmax is at most {far:.1f} points away, at {sizes[place]:,} items."
        )
    return said


def _accuracy(found: dict[str, Any]) -> Chart:
    sizes = found["sizes"]
    dashes = {"argmax": "dash"}
    lines = [
        with_spread(
            label, sizes, found["mean"][name], found["std"][name], dash=dashes.get(name, "solid")
        )
        for name, label in NAMES.items()
    ]
    printed = {int(size): row for size, row in found["paper"].items()}
    lines += [
        Line(
            f"the paper's {NAMES[name]}",
            list(printed),
            [row[name] for row in printed.values()],
            colour=f"series-{place}",
            dash="dot",
        )
        for place, name in ((1, "baseline"), (2, "adaptive"))
    ]
    text = "Mean of the heads; band: standard deviation."
    rules = [Rule("y", 10, "chance")]
    return Chart("Accuracy", by_size(sizes), accuracy_axis(), lines, rules, text)


def _causes(found: dict[str, Any]) -> Group:
    sizes = found["sizes"]
    charts = []
    for name in ("baseline", "adaptive"):
        lines = [
            Line(label, sizes, [100 * share for share in found["attribution"][name][cause]])
            for cause, label in CAUSES.items()
        ]
        axis = Axis("share of the sets, %", digits=1, unit="%", low=0, high=100)
        charts.append(Chart(NAMES[name].capitalize(), by_size(sizes), axis, lines))
    return Group("Where the lost answers went", charts)


def _table(found: dict[str, Any]) -> Table:
    columns = [Column("Items", 0), Column("Softmax %", 1), Column("Adaptive %", 1)]
    columns += [Column("Gain", 1), Column("p", 3), Column("Argmax %", 1)]
    columns += [Column("Paper: softmax %", 1), Column("Paper: adaptive %", 1)]
    columns += [Column("Paper: p", 3), Column("How sure of the paper")]
    rows = []
    for place, size in enumerate(found["sizes"]):
        shares = {name: _told(found, name, place) for name in NAMES}
        gain = found["mean"]["adaptive"][place] - found["mean"]["baseline"][place]
        p = found["p"][place]
        paper = found["paper"].get(str(size))
        theirs: list[Any] = [None, None, None, ""]
        if paper is not None:
            their_p = Told(paper["p"], chance(paper["p"]))
            theirs = [paper["baseline"], paper["adaptive"], their_p, paper["sure"]]
        ours = [shares["baseline"], shares["adaptive"], Told(gain, points(gain))]
        rows.append([size, *ours, Told(p, chance(p)), shares["argmax"], *theirs])
    return Table("Table 1", columns, rows, "Mean ± standard deviation over the heads.")


def _told(found: dict[str, Any], name: str, place: int) -> Told:
    mean, std = found["mean"][name][place], found["std"][name]
    spread = "" if std is None else f" ± {100 * std[place]:.1f}"
    return Told(mean, f"{100 * mean:.1f}{spread}")
