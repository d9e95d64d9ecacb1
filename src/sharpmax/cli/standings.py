"""The leaderboard as tables in the terminal, one a track."""

from __future__ import annotations

from typing import Any

from sharpmax.cli.formats import new_table, percent
from sharpmax.results import Result

SHORTER = {"second-max": "second", "most-frequent": "frequent"}
"""A terminal of 80 columns has no room for more."""

OWN = ("trained", "augmented")
"""Tracks in which a method is trained with, so that a step of it has a cost."""


def standings(result: Result) -> list[Any]:
    found = result.measurements
    near, far = _places(found["sizes"])
    sizes = found["sizes"]
    parts: list[Any] = []
    for track, what in found["tracks"].items():
        rows = [row for row in found["rows"] if row["track"] == track]
        title = f"{track}: {what}. Accuracy %"
        table = new_table(None)
        table.add_column("method", no_wrap=True)
        shown = _columns(rows, near, far)
        for task, place in shown:
            name = SHORTER.get(task, task)
            table.add_column(f"{name} {sizes[place]:,}", justify="right", min_width=10)
        if track in OWN:
            table.add_column("cost", justify="right")
        for method in _order(rows):
            cells = {row["task"]: row for row in rows if row["method"] == method}
            cost = [f"{found['cost']['ratio'][method]:.2f}"] if track in OWN else []
            table.add_row(method, *(_cell(cells[task], place) for task, place in shown), *cost)
        parts += [title, table, *_absent(rows), ""]
    spread = (
        f"±: standard deviation over {len(result.seeds)} seeds. " if len(result.seeds) > 1 else ""
    )
    return [*parts, f"{spread}cost: the time of a training step over that with softmax."]


def _places(sizes: list[int]) -> tuple[int, int]:
    """Of the two sizes that are shown: 1,024, or the middle one, and the last."""
    return sizes.index(1024) if 1024 in sizes else len(sizes) // 2, len(sizes) - 1


def _columns(rows: list[dict[str, Any]], near: int, far: int) -> list[tuple[str, int]]:
    """Tasks and sizes: two of the first task, one of each other that anybody took part in."""
    tasks = list(dict.fromkeys(row["task"] for row in rows if "reason" not in row))
    others = [(task, far if task == "most-frequent" else near) for task in tasks[1:]]
    return [*((task, place) for task in tasks[:1] for place in dict.fromkeys((near, far))), *others]


def _order(rows: list[dict[str, Any]]) -> list[str]:
    """Who took part, the most accurate on the largest sets of the first shown task first."""
    taking_part = [row for row in rows if "reason" not in row]
    there = [row for row in taking_part if row["task"] == taking_part[0]["task"]]
    return [row["method"] for row in sorted(there, key=lambda row: -row["mean"][-1])]


def _cell(row: dict[str, Any], place: int) -> str:
    std = None if row["std"] is None else row["std"][place]
    return percent(row["mean"][place], std).replace(" ", "")  # a terminal is narrow


def _absent(rows: list[dict[str, Any]]) -> list[str]:
    """Who could not take part, and why; a task in which nobody could, once."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "reason" in row:
            by_reason.setdefault((row["reason"], row["task"]), []).append(row["method"])
    methods = len({row["method"] for row in rows})
    lines: dict[str, None] = {}
    for (reason, task), names in by_reason.items():
        if len(names) >= methods - 1:
            lines[f"not in {task}: {reason}"] = None
        else:
            lines[f"without {', '.join(names)}: {reason}"] = None
    return list(lines)
