"""Other ways to sharpen the same heads: what does each gain, and what does it cost?"""

from __future__ import annotations

from typing import Any

from sharpmax._names import WAYS_TO_SHARPEN
from sharpmax.report.blocks import Axis, Chart, Column, Content, Group, Line, Table
from sharpmax.report.numbers import counted, joined, percent
from sharpmax.report.table1 import accuracy_axis, by_size
from sharpmax.results import Result

TASKS = {"max": "Max retrieval", "most-frequent": "The guard task: the most frequent class"}


def content(result: Result) -> Content:
    found = result.measurements
    return Content(
        what="ways to sharpen",
        title="The same trained heads, sharpened in different ways",
        facts=[
            f"{counted(len(result.seeds), 'head')}",
            f"{result.config['sets']:,} sets of each size",
            "no training",
        ],
        findings=_findings(found),
        advice=[
            "Choose among the ways that keep the guard task: one that ruins a head that averages "
            "is safe only for heads that are known to look for one item."
        ],
        blocks=[_curves(found), *(_table(found, task) for task in TASKS if task in found["tasks"])],
    )


def _name(method: str) -> str:
    return WAYS_TO_SHARPEN.get(method, method)


def _findings(found: dict[str, Any]) -> list[str]:
    sizes, mean = found["sizes"], found["tasks"]["max"]["mean"]
    kept = [name for name in mean if found["keeps_guard"][name] and name != "plain"]
    lost = [name for name in mean if not found["keeps_guard"][name]]
    best = max(kept, key=lambda name: sum(mean[name]))
    last = sizes[-1]
    said = [
        f"Of the ways that keep the guard task, the most accurate over all sizes is {_name(best)}: "
        f"at {last:,} items {percent(mean[best][-1])}, where plain softmax has "
        f"{percent(mean['plain'][-1])} and the paper's policy {percent(mean['paper'][-1])}."
    ]
    if lost:
        names = joined([_name(one) for one in lost])
        said.append(f"More than a point of the guard task is lost by {names}.")
    return said


def _curves(found: dict[str, Any]) -> Group:
    sizes, tasks = found["sizes"], found["tasks"]
    plain = tasks["max"]["mean"]["plain"]
    gains, costs = [], []
    for name, mean in tasks["max"]["mean"].items():
        gain = [100 * (one - other) for one, other in zip(mean, plain, strict=True)]
        gains.append(_line(name, sizes, gain))
    for name, mean in tasks.get("most-frequent", {}).get("mean", {}).items():
        costs.append(_line(name, sizes, [100 * one for one in mean]))
    charts = [
        Chart(
            "Max retrieval: what sharpening gains",
            by_size(sizes),
            Axis("points above plain softmax", digits=1),
            gains,
        )
    ]
    if costs:
        title = "The most frequent class: what it costs"
        charts.append(Chart(title, by_size(sizes), accuracy_axis(), costs))
    return Group("Gain and cost", charts)


def _line(name: str, sizes: list[int], values: list[float]) -> Line:
    if name in ("plain", "argmax"):  # the two ends
        return Line(
            _name(name), sizes, values, colour="ink", dash="dot" if name == "plain" else "dash"
        )
    return Line(_name(name), sizes, values)


def _table(found: dict[str, Any], task: str) -> Table:
    guard = task == "most-frequent"
    columns = [Column("Way"), *(Column(f"{size:,}", 1) for size in found["sizes"])]
    columns += [Column("Within one point")] if guard else []
    rows = [
        [
            _name(name),
            *(100 * one for one in mean),
            *(["yes" if found["keeps_guard"][name] else "no"] if guard else []),
        ]
        for name, mean in found["tasks"][task]["mean"].items()
    ]
    return Table(f"{TASKS[task]}: accuracy % by items", columns, rows)
