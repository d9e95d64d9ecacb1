"""Settings that the paper leaves open, tried: which come closest to its Table 1?"""

from __future__ import annotations

from sharpmax.report.blocks import Cell, Chart, Column, Content, Group, Line, Table, Verdict
from sharpmax.report.kinds._shared import accuracy_axis, middle_and_last, percents, size_axis
from sharpmax.report.numbers import plural
from sharpmax.report.palette import SOFTMAX
from sharpmax.results import Result, schemas


def describe(result: Result) -> Content:
    grid = schemas.Unknowns.of(result)
    worst = max(grid.cells, key=lambda setting: setting.distance.mean)
    return Content(
        what="unknown settings of Table 1",
        title="Settings that the paper leaves open, tried",
        facts=[plural(len(grid.cells), "setting"), f"{grid.sets:,} sets of each size"],
        sentences=[
            closest_setting(grid),
            f"The farthest is {_name(worst)}, {worst.steps:,} steps: {worst.distance.mean:.1f} "
            "points from Table 1 on average.",
        ],
        verdict=Verdict(
            "neutral",
            "No setting that we tried gives the paper's numbers exactly.",
            command="sharpmax reproduce table1",
        ),
        blocks=[_panels(grid), _table(grid)],
    )


def closest_setting(grid: schemas.Unknowns) -> str:
    """Return the sentence on the setting that comes closest to the paper."""
    closest = grid.cells[grid.closest]
    return (
        f"The closest of {len(grid.cells)} settings is {_name(closest)}, {closest.steps:,} steps: "
        f"{closest.distance.mean:.1f} points from Table 1 on average, "
        f"{closest.distance.worst:.1f} at worst ({plural(closest.seeds, 'seed')})."
    )


def _name(setting: schemas.Setting) -> str:
    logits = "logits / √128" if setting.scaled else "unscaled logits"
    return f"{logits}, {'decoupled decay' if setting.decoupled else 'L2 in the loss'}"


def _panels(grid: schemas.Unknowns) -> Group:
    printed = {size: row.baseline for size, row in grid.paper.items()}
    charts = []
    for title in dict.fromkeys(_name(setting) for setting in grid.cells):
        lines = [
            Line(f"{setting.steps:,} steps", grid.sizes, percents(setting.mean["baseline"]))
            for setting in grid.cells
            if _name(setting) == title
        ]
        paper = Line.of(
            SOFTMAX, list(printed), list(printed.values()), name="Table 1", dash="dot", marks=0
        )
        title = title[:1].upper() + title[1:]
        charts.append(Chart(title, size_axis(grid.sizes), accuracy_axis(), [*lines, paper]))
    return Group("Accuracy of softmax", charts)


def _table(grid: schemas.Unknowns) -> Table:
    middle = middle_and_last(grid.sizes)[0]
    columns = [
        Column("Logits and decay"),
        Column("Steps", 0),
        Column("Mean distance", 1, "lower"),
        Column("Largest distance", 1, "lower", short="Largest"),
        Column(f"% at {grid.sizes[middle]:,} items", 1),
        Column("Seeds", 0),
    ]
    rows = []
    for index, setting in enumerate(grid.cells):
        mean, worst = setting.distance.mean, setting.distance.worst
        closest = " (the closest)" if index == grid.closest else ""
        accuracy = 100 * setting.mean["baseline"][middle]
        distance = Cell(mean, f"{mean:.1f}{closest}")
        rows.append([_name(setting), setting.steps, distance, worst, accuracy, setting.seeds])
    return Table("Distance to Table 1, in points of accuracy", columns, rows)
