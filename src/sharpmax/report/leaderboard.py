"""Which way from logits to weights stays accurate as sets grow? The leaderboard, track by track."""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import Axis, Block, Chart, Column, Content, Group, Line, Table, Told
from sharpmax.report.numbers import counted, joined, percent
from sharpmax.report.table1 import accuracy_axis, by_size
from sharpmax.results import Result

NAMED = 5
"""So many of a track have a colour; with twenty, nobody could tell them apart."""

ALWAYS = ("softmax", "adaptive-temperature")
GUARD = "most-frequent"
OWN = ("trained", "augmented")
"""Tracks in which a method is trained with, so that a step of it has a cost."""

Row = dict[str, Any]


def content(result: Result) -> Content:
    found, config = result.measurements, result.config
    first = config["tasks"][0]
    tracks = [track for track in found["tracks"] if _rows(found, track, first)]
    return Content(
        what="leaderboard",
        title="Ways from logits to weights, trained and compared alike",
        facts=[
            f"{counted(len({row['method'] for row in found['rows']}), 'method')}",
            f"tasks {joined(config['tasks'])}",
            f"{config['budget']['steps']:,} steps",
            f"{counted(len(result.seeds), 'seed')}",
            f"sets of {found['sizes'][0]:,} to {found['sizes'][-1]:,} items",
        ],
        findings=[_best(found, track, first) for track in tracks],
        advice=_advice(found, tracks, first),
        blocks=[
            *(block for track in tracks for block in _track(found, track, config["tasks"])),
            *_absent(found),
        ],
    )


def _rows(found: dict[str, Any], track: str, task: str) -> list[Row]:
    """Those that took part, the most accurate on the largest sets first."""
    there = [
        row
        for row in found["rows"]
        if row["track"] == track and row["task"] == task and "reason" not in row
    ]
    return sorted(there, key=lambda row: -row["mean"][-1])


def _best(found: dict[str, Any], track: str, task: str) -> str:
    rows = _rows(found, track, task)
    plain = [row for row in rows if row["method"] == "softmax"]
    text = (
        f"{track} ({found['tracks'][track]}): the best on {task} at {found['sizes'][-1]:,} items "
        f"is {rows[0]['method']}, right in {percent(rows[0]['mean'][-1])}"
    )
    return f"{text}; softmax {percent(plain[0]['mean'][-1])}." if plain else f"{text}."


def _advice(found: dict[str, Any], tracks: list[str], task: str) -> list[str]:
    if GUARD not in {row["task"] for row in found["rows"]}:
        return ["A way that wins here may fail where a head has to average: compare that too."]
    both = []
    for track in tracks:
        guards = {row["method"]: row["mean"][-1] for row in _rows(found, track, GUARD)}
        rows = [row for row in _rows(found, track, task) if guards.get(row["method"], 0) >= 0.9]
        if rows:
            name, share = rows[0]["method"], rows[0]["mean"][-1]
            both.append(f"{name} in {track} ({percent(share)} on {task})")
    said = "A way that wins at finding one item may ruin heads that average. "
    if not both:
        return [f"{said}None keeps 90 % of {GUARD} here."]
    return [
        f"{said}Best among those that keep 90 % of {GUARD} on the largest sets: {joined(both)}."
    ]


def _track(found: dict[str, Any], track: str, tasks: list[str]) -> list[Block]:
    charts = []
    looks = _looks(_rows(found, track, tasks[0]))
    for task in tasks:
        rows = _rows(found, track, task)
        if rows:
            lines = _lines(found["sizes"], rows, "mean", 100, looks)
            charts.append(
                Chart(
                    f"Accuracy on {task}",
                    by_size(found["sizes"]),
                    accuracy_axis(),
                    lines,
                    single=True,
                )
            )
    rows = _rows(found, track, tasks[0])
    sharp = _lines(found["sizes"], rows, "sharpness", 1, looks)
    axis = Axis("the largest weight, as a share of all", scale="log", digits=3)
    title = f"Sharpness on {tasks[0]}"
    charts.append(Chart(title, by_size(found["sizes"]), axis, sharp, single=True))
    text = f"{found['tracks'][track]}. In colour: softmax, the paper's and the best {NAMED}."
    group = Group(f"Track {track}", charts, text[:1].upper() + text[1:])
    return [group, _table(found, track, tasks)]


def _looks(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """How each named method is drawn in all charts of a track: the best, and two always."""
    there = [row["method"] for row in rows]
    named = dict.fromkeys([*(name for name in ALWAYS[1:] if name in there), *there[:NAMED]])
    colours = [name for name in named if name != "softmax"]
    looks: dict[str, dict[str, Any]] = {
        name: {"colour": f"series-{place + 1}"} for place, name in enumerate(colours)
    }
    return {"softmax": {"colour": "ink", "dash": "dot"}, **looks}


def _lines(
    sizes: list[int], rows: list[Row], what: str, factor: float, looks: dict[str, dict[str, Any]]
) -> list[Line]:
    """Those in colour last, so that they lie above the others."""
    grey = {"colour": "other", "marks": 1.5}
    made = []
    for row in sorted(rows, key=lambda row: row["method"] in looks):
        values = [None if value is None else factor * value for value in row[what]]
        made.append(Line(row["method"], sizes, values, **looks.get(row["method"], grey)))
    return made


def _table(found: dict[str, Any], track: str, tasks: list[str]) -> Table:
    sizes = found["sizes"]
    shown = list(dict.fromkeys([sizes.index(1024) if 1024 in sizes else len(sizes) // 2, -1]))
    by_task = {task: _rows(found, track, task) for task in tasks}
    by_task = {task: rows for task, rows in by_task.items() if rows}
    columns = [Column("Method")]
    columns += [Column(f"{task}, {sizes[place]:,} %", 1) for task in by_task for place in shown]
    columns += [Column("Cost of a step", 2)] if track in OWN else []
    rows = []
    for name in dict.fromkeys(row["method"] for rows in by_task.values() for row in rows):
        cells: list[Any] = [name]
        for there in by_task.values():
            row = next((one for one in there if one["method"] == name), None)
            cells += [None if row is None else _told(row, place) for place in shown]
        rows.append(cells + ([found["cost"]["ratio"].get(name)] if track in OWN else []))
    cost = " Cost: the time of a training step over that with softmax." if track in OWN else ""
    return Table(
        f"Track {track}: accuracy", columns, rows, f"Mean ± standard deviation over seeds.{cost}"
    )


def _told(row: Row, place: int) -> Told:
    spread = "" if row["std"] is None else f" ± {100 * row['std'][place]:.1f}"
    return Told(row["mean"][place], f"{100 * row['mean'][place]:.1f}{spread}")


def _absent(found: dict[str, Any]) -> list[Block]:
    rows = [
        [row["track"], row["task"], row["method"], row["reason"]]
        for row in found["rows"]
        if "reason" in row
    ]
    columns = [Column("Track"), Column("Task"), Column("Method"), Column("Why not")]
    return [Table("Who did not take part", columns, rows)] if rows else []
