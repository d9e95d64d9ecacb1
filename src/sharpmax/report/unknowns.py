"""What the paper does not say of its training, tried: which settings come closest to Table 1?"""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import Chart, Column, Content, Group, Line, Table, Told
from sharpmax.report.numbers import counted
from sharpmax.report.table1 import accuracy_axis, by_size
from sharpmax.results import Result


def content(result: Result) -> Content:
    found, sizes = result.measurements, result.config["sizes"]
    cells, closest = found["cells"], found["cells"][found["closest"]]
    ordered = sorted(cells, key=lambda cell: cell["distance"]["mean"])
    worst = ordered[-1]
    return Content(
        what="unknown settings of Table 1",
        title="What is not known of the paper's settings, tried",
        facts=[f"{counted(len(cells), 'setting')}", f"{result.config['sets']:,} sets of each size"],
        findings=[
            f"The closest to the paper is {_name(closest)}, {closest['steps']:,} steps: "
            f"{closest['distance']['mean']:.1f} points of accuracy away on average, "
            f"{closest['distance']['worst']:.1f} at worst.",
            f"The farthest is {_name(worst)}, {worst['steps']:,} steps: "
            f"{worst['distance']['mean']:.1f} points on average.",
        ],
        advice=[],
        blocks=[_panels(found, sizes), _table(found, sizes)],
    )


def _name(cell: dict[str, Any]) -> str:
    logits = "logits / √128" if cell["scaled"] else "logits as they are"
    return f"{logits}, {'decoupled decay' if cell['decoupled'] else 'L2 in the loss'}"


def _panels(found: dict[str, Any], sizes: list[int]) -> Group:
    printed = {int(size): row["baseline"] for size, row in found["paper"].items()}
    charts = []
    for title in dict.fromkeys(_name(cell) for cell in found["cells"]):
        lines = [
            Line(f"{cell['steps']:,} steps", sizes, [100 * one for one in cell["mean"]["baseline"]])
            for cell in found["cells"]
            if _name(cell) == title
        ]
        paper = Line("Table 1", list(printed), list(printed.values()), colour="ink", dash="dot")
        charts.append(Chart(title, by_size(sizes), accuracy_axis(), [*lines, paper]))
    return Group("Accuracy of softmax", charts)


def _table(found: dict[str, Any], sizes: list[int]) -> Table:
    middle = 1024 if 1024 in sizes else sizes[len(sizes) // 2]
    columns = [Column("Logits and decay"), Column("Steps", 0), Column("Mean distance", 1)]
    columns += [Column("Largest distance", 1), Column(f"% at {middle:,} items", 1)]
    columns.append(Column("Seeds", 0))
    rows = []
    for place, cell in enumerate(found["cells"]):
        mean = cell["distance"]["mean"]
        mark = " (the closest)" if place == found["closest"] else ""
        at = 100 * cell["mean"]["baseline"][sizes.index(middle)]
        told = Told(mean, f"{mean:.1f}{mark}")
        worst = cell["distance"]["worst"]
        rows.append([_name(cell), cell["steps"], told, worst, at, cell["seeds"]])
    return Table("Distance to Table 1, in points of accuracy", columns, rows)
