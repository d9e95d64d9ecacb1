"""The leaderboard: which method from logits to weights stays accurate as sets grow?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sharpmax.report.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Content,
    DotRow,
    Dots,
    Group,
    Line,
    Mark,
    Table,
    Verdict,
)
from sharpmax.report.kinds._shared import (
    accuracy_axis,
    middle_and_last,
    percents,
    share_cell,
    size_axis,
)
from sharpmax.report.numbers import join, percent, plural
from sharpmax.report.palette import METHODS, Look, looks, name
from sharpmax.results import Result, schemas

ALWAYS = ("softmax", "adaptive-temperature")
GUARD = "most-frequent"
SAME_GUARD = {"augmented": "trained", "augmented-drop-in": "drop-in"}
"""Tracks without their own guard task: narrow ranges of values do not change it."""
TRAINED = ("trained", "augmented")
"""Tracks in which a method is used in training, so that a training step has a cost."""
SHORT = {"second-max": "second", "most-frequent": "frequent"}
"""Names of tasks for the terminal."""


def describe(result: Result) -> Content:
    board = schemas.Leaderboard.of(result)
    first = board.tasks[0]
    tracks = [track for track in board.tracks if board.ranking(track, first)]
    dots = [_dots(board, track) for track in tracks]
    parts = zip(
        dots,
        [_charts(board, track) for track in tracks],
        [_table(board, track) for track in tracks],
        strict=True,
    )
    return Content(
        what="leaderboard",
        title="Methods from logits to weights, trained and compared alike",
        facts=[
            plural(len({row.method for row in board.rows}), "method"),
            f"tasks {join(board.tasks)}",
            f"{board.budget.steps:,} steps",
            plural(len(board.seeds), "seed"),
            f"sets of {board.sizes[0]:,} to {board.sizes[-1]:,} items",
        ],
        sentences=[_best(board, track, first) for track in tracks],
        verdict=_verdict(board, tracks, first),
        blocks=[*(block for part in parts for block in part), *_absent(board)],
        picture=dots,
    )


def _best(board: schemas.Leaderboard, track: str, task: str) -> str:
    best = board.ranking(track, task)[0]
    plain = board.row(track, task, "softmax")
    text = (
        f"{track} ({board.tracks[track]}): {name(best.method)} is the best on {task} at "
        f"{board.sizes[-1]:,} items, with {percent(best.mean[-1])}"
    )
    return f"{text}; softmax has {percent(plain.mean[-1])}." if plain else f"{text}."


def _verdict(board: schemas.Leaderboard, tracks: Sequence[str], task: str) -> Verdict:
    warning = "A method that wins at finding one item may ruin heads that average."
    if GUARD not in {row.task for row in board.rows}:
        return Verdict("mixed", warning, command=f"sharpmax leaderboard --task {GUARD}")
    safe = []
    for track in tracks:
        guards = {row.method: row.mean[-1] for row in board.ranking(track, GUARD)}
        rows = [row for row in board.ranking(track, task) if guards.get(row.method, 0) >= 0.9]
        if rows:
            safe.append(f"{name(rows[0].method)} in {track} ({percent(rows[0].mean[-1])})")
    best = (
        f"Best on {task} among those that keep 90 % of {GUARD} on the largest sets: {join(safe)}."
        if safe
        else f"No method here keeps 90 % of {GUARD}."
    )
    return Verdict("mixed", warning, [best], command="sharpmax reproduce policies")


def _dots(board: schemas.Leaderboard, track: str) -> Dots:
    """Draw the accuracy of every method on the largest sets, seed by seed."""
    tasks = [task for task in board.tasks if board.ranking(track, task)]
    methods = dict.fromkeys(row.method for task in tasks for row in board.ranking(track, task))
    rows = []
    for method in methods:
        marks: list[Mark | None] = []
        for task in tasks:
            row = board.row(track, task, method)
            if row is None:
                marks.append(None)
            else:
                seeds = [100 * accuracy[-1] for accuracy in row.accuracy]
                marks.append(Mark(100 * row.mean[-1], points=seeds))
        colour = METHODS[method].colour if method in METHODS else "other"
        rows.append(DotRow(name(method), colour, marks))
    axes = [
        Axis(f"{task}, {board.sizes[-1]:,} items: % right", digits=1, unit="%", low=-2, high=102)
        for task in tasks
    ]
    text = f"{_what(board, track)}. Small dots: seeds; bar: their mean. Right is better."
    return Dots(f"Track {track}: the largest sets", axes, rows, text)


def _charts(board: schemas.Leaderboard, track: str) -> Group:
    look = _looks(board)
    charts = []
    for task in board.tasks:
        rows = board.ranking(track, task)
        if rows:
            lines = [
                _line(look, row.method, board.sizes, percents(row.mean))
                for row in _colours_last(rows, look)
            ]
            x, y = size_axis(board.sizes), accuracy_axis()
            charts.append(Chart(f"Accuracy on {task}", x, y, lines, single=True))
    first = board.ranking(track, board.tasks[0])
    lines = [
        _line(look, row.method, board.sizes, row.sharpness) for row in _colours_last(first, look)
    ]
    y = Axis("largest weight, as a share of all", scale="log", digits=3)
    title = f"Sharpness on {board.tasks[0]}"
    charts.append(Chart(title, size_axis(board.sizes), y, lines, single=True))
    charts += _both_tasks(board, track, look)
    text = (
        "In colour: softmax, adaptive temperature and the best two of each track; grey: the others."
    )
    return Group(f"Track {track}: all sizes", charts, text, len(charts))


def _what(board: schemas.Leaderboard, track: str) -> str:
    """Return what a track is about, as the start of a sentence."""
    return board.tracks[track][:1].upper() + board.tracks[track][1:]


def _both_tasks(board: schemas.Leaderboard, track: str, look: dict[str, Look]) -> list[Chart]:
    """Draw the first task against the guard task, both on the largest sets."""
    first = board.tasks[0]
    guards = board.ranking(track, GUARD) or board.ranking(SAME_GUARD.get(track, ""), GUARD)
    by_method = {row.method: row.mean[-1] for row in guards}
    rows = [row for row in board.ranking(track, first) if row.method in by_method]
    if not rows or first == GUARD:
        return []
    lines = [
        _line(
            look,
            row.method,
            percents([by_method[row.method]]),
            percents([row.mean[-1]]),
            dash="none",
            marks=4.0,
        )
        for row in _colours_last(rows, look)
    ]
    x = Axis(f"accuracy on {GUARD}, %", digits=1, noun=f"% on {GUARD}", low=0, high=104)
    y = Axis(f"accuracy on {first}, %", digits=1, unit="%", low=0, high=104)
    return [Chart(f"Both tasks, {board.sizes[-1]:,} items", x, y, lines, single=True)]


def _looks(board: schemas.Leaderboard) -> dict[str, Look]:
    """Return the looks of the methods that have a colour, the same in every track."""
    best = [
        row.method for track in board.tracks for row in board.ranking(track, board.tasks[0])[:2]
    ]
    return looks(dict.fromkeys([*ALWAYS, *best]))


def _colours_last(
    rows: Sequence[schemas.BoardRow], look: dict[str, Look]
) -> list[schemas.BoardRow]:
    """Sort the methods in colour last, so that their lines lie above the grey ones."""
    return sorted(rows, key=lambda row: row.method in look)


def _line(look: dict[str, Look], method: str, x: Any, y: Any, **options: Any) -> Line:
    if method in look:
        return Line.of(look[method], x, y, **options)
    grey = Look(METHODS[method].name if method in METHODS else method, "other")
    return Line.of(grey, x, y, **({"marks": 1.5} | options))


def _table(board: schemas.Leaderboard, track: str) -> Table:
    rankings = {task: board.ranking(track, task) for task in board.tasks}
    by_task = {task: ranking for task, ranking in rankings.items() if ranking}
    shown = middle_and_last(board.sizes)
    columns = [Column("Method")]
    for task in by_task:
        for index in shown:
            brief = f"{SHORT.get(task, task)} {board.sizes[index]:,}"
            # A terminal has room for one size of the other tasks.
            dropped = task != board.tasks[0] and index != (shown[-1] if task == GUARD else shown[0])
            title = f"{task}, {board.sizes[index]:,} %"
            columns.append(Column(title, 1, "higher", short="" if dropped else brief))
    columns += [Column("Cost of a step", 2, "lower", short="cost")] if track in TRAINED else []
    rows: list[list[Any]] = []
    for method in dict.fromkeys(row.method for ranking in by_task.values() for row in ranking):
        cells: list[Any] = [name(method)]
        for task in by_task:
            found = board.row(track, task, method)
            cells += [found and share_cell(found.mean, found.std, index) for index in shown]
        rows.append(cells + ([board.cost.ratio.get(method)] if track in TRAINED else []))
    text = f"{_what(board, track)}. Accuracy %"
    seeds = len(board.seeds)
    text += f": mean ± standard deviation over {seeds} seeds." if seeds > 1 else "."
    if track in TRAINED:
        text += " Cost: the time of a training step over that with softmax."
    return Table(f"Track {track}", columns, rows, text)


def _absent(board: schemas.Leaderboard) -> list[Block]:
    """List who did not take part, once per reason."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for row in board.rows:
        if row.reason is not None:
            reasons.setdefault((row.track, row.task, row.reason), []).append(row.method)
    methods = {row.method for row in board.rows}
    rows = [
        [track, task, "all" if len(names) >= len(methods) - 1 else ", ".join(names), reason]
        for (track, task, reason), names in reasons.items()
    ]
    columns = [Column("Track"), Column("Task"), Column("Methods"), Column("Why not")]
    return [Table("Who did not take part", columns, rows)] if rows else []
