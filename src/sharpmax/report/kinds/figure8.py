"""Figure 8: CLRS-Text. Does a model stay right on problems larger than those it was trained on?"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

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
from sharpmax.report.kinds._shared import percents, share_cell, share_line
from sharpmax.report.numbers import plural, points, share
from sharpmax.report.palette import Look, looks
from sharpmax.results import Result, schemas

T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""The 97.5 % quantile of Student's t, for 1, 2, ... degrees of freedom."""
SHORT = {"find_maximum_subarray_kadane": "kadane", "strongly_connected_components": "strong comp."}


def describe(result: Result) -> Content:
    figure = schemas.Figure8.of(result)
    return Content(
        what="Figure 8: CLRS-Text",
        title=f"CLRS-Text at sizes beyond those trained at{_training(figure)}",
        facts=[
            figure.model,
            plural(len(figure.algorithms), "algorithm"),
            f"{plural(len(figure.seeds), 'training')} per condition",
            plural(len(figure.test_seeds), "test set"),
        ],
        sentences=[
            "Exact match beyond the sizes trained at, mean over the algorithms: "
            f"{'; '.join(beyond_training(figure))}."
        ],
        verdict=_verdict(figure),
        blocks=[
            _accuracy(figure),
            *_entropy(figure),
            by_algorithm(figure),
            _table(figure),
        ],
        picture=[_accuracy(figure)],
        notes=figure.notes,
    )


def algorithm_name(algorithm: str) -> str:
    """Return the name of an algorithm as a reader would write it, short enough for a panel."""
    return SHORT.get(algorithm, algorithm).replace("_", " ")


def indices(algorithm: schemas.Algorithm, *, beyond: bool) -> list[int]:
    """Return the indices of the sizes up to the largest trained at, or of those beyond it."""
    largest = max(algorithm.train_sizes, default=0)
    return [index for index, size in enumerate(algorithm.sizes) if (size > largest) == beyond]


def by_training(algorithm: schemas.Algorithm, condition: str, *, beyond: bool) -> np.ndarray:
    """Return the accuracy of each training, over test sets and sizes; of the last size if none."""
    curve = algorithm.arms[condition]
    accuracy = np.asarray(curve.accuracy or [[curve.mean]])  # [training, test set, size]
    return np.asarray(accuracy[:, :, indices(algorithm, beyond=beyond) or [-1]].mean((1, 2)))


def over_trainings(accuracy: np.ndarray) -> str:
    """Format the mean over trainings, with the standard deviation if there are several."""
    return share(float(accuracy.mean()), float(accuracy.std(ddof=1)) if len(accuracy) > 1 else None)


def beyond_training(figure: schemas.Figure8) -> list[str]:
    """Say how accurate each condition is beyond the sizes trained at, and how often it is better
    than the first.
    """
    algorithms = figure.algorithms.values()
    scores = {
        condition: np.stack([by_training(one, condition, beyond=True) for one in algorithms])
        for condition in figure.labels
    }
    first = scores[next(iter(figure.labels))].mean(1)
    parts: list[str] = []
    for condition, label in figure.labels.items():
        own = scores[condition].mean(1)
        wins = f", better in {(own > first).sum()} of {len(own)} and worse in {(own < first).sum()}"
        parts.append(
            f"{label} {over_trainings(scores[condition].mean(0))} %{wins if parts else ''}"
        )
    return parts


def _training(figure: schemas.Figure8) -> str:
    """Return how the models were trained, as the end of a title."""
    kinds = {training.from_scratch for training in figure.trainings if training.config}
    if len(kinds) != 1:
        return ""
    return ": trained from scratch" if kinds == {True} else ": fine-tuned"


def differences(figure: schemas.Figure8) -> dict[str, np.ndarray]:
    """Return what each condition gains over the first beyond the sizes trained at, by training.

    A share, as the mean over algorithms; trainings of the same seed are compared.
    """
    algorithms = figure.algorithms.values()
    scores = {
        condition: np.mean([by_training(one, condition, beyond=True) for one in algorithms], 0)
        for condition in figure.labels
    }
    first = next(iter(figure.labels))
    return {
        condition: score - scores[first]
        for condition, score in scores.items()
        if condition != first
    }


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of a mean by Student's t; infinite for one value."""
    if len(values) < 2:
        return -math.inf, math.inf
    error = values.std(ddof=1) / math.sqrt(len(values))
    margin = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1] * error
    return float(values.mean() - margin), float(values.mean() + margin)


def _verdict(figure: schemas.Figure8) -> Verdict:
    clear = []
    for condition, gains in differences(figure).items():
        low, high = _interval(gains)
        if low > 0 or high < 0:
            change = f"{points(float(gains.mean()))} points ({points(low)} to {points(high)})"
            clear.append((float(gains.mean()), f"{figure.labels[condition]} {change}"))
    trainings = plural(len(figure.seeds), "training")
    if not clear:
        return Verdict(
            "neutral",
            f"No condition differs clearly from the first beyond the sizes trained at, with "
            f"{trainings} each.",
            ["The 95 % interval over trainings includes 0 for every condition."],
            command="sharpmax tune MODEL",
        )
    first = figure.labels[next(iter(figure.labels))]
    return Verdict(
        "good" if all(gain > 0 for gain, _ in clear) else "mixed",
        f"Against {first} beyond the sizes trained at: {'; '.join(text for _, text in clear)}.",
        [f"In brackets: 95 % intervals over {trainings}. The others do not differ clearly."],
        command="sharpmax tune MODEL",
    )


def _looks(figure: schemas.Figure8) -> dict[str, Look]:
    known = looks(figure.labels)
    return {key: replace(known[key], name=label) for key, label in figure.labels.items()}


def _size_axis() -> Axis:
    return Axis("size of the problem", noun="(size)")


def _accuracy(figure: schemas.Figure8) -> Group:
    look, charts = _looks(figure), []
    for name, algorithm in figure.algorithms.items():
        lines = [
            share_line(look[condition], algorithm.sizes, curve.mean, curve.std_tests)
            for condition, curve in reversed(algorithm.arms.items())  # the first one on top
        ]
        if min(algorithm.familiar) < 1:
            lines.append(
                Line(
                    "answers of items seen in training",
                    algorithm.sizes,
                    percents(algorithm.familiar),
                    colour="muted",
                    dash="dot",
                    marks=0,
                )
            )
        rules = [Rule("x", size) for size in algorithm.train_sizes]
        axis = Axis("exact match, %", digits=1, unit="%", low=-2, high=104, ticks=[0, 50, 100])
        charts.append(Chart(algorithm_name(name), _size_axis(), axis, lines, rules))
    text = (
        "Mean over trainings and test sets; band: standard deviation over test sets. Dotted "
        "vertical lines: sizes trained at. A model that was never asked for the twentieth item of "
        "a list cannot be expected to name it: the dotted curve is the share of answers without "
        "such items."
    )
    return Group("Exact match by algorithm", charts, text)


def _entropy(figure: schemas.Figure8) -> list[Group]:
    look, charts = _looks(figure), []
    for name, algorithm in figure.algorithms.items():
        lines = [
            Line.of(look[condition], algorithm.sizes, curve.mean_entropy)
            for condition, curve in algorithm.arms.items()
            if any(value is not None for value in curve.mean_entropy)
        ]
        if lines:
            axis = Axis("entropy of the heads, nats", digits=2, unit="nats", low=0)
            charts.append(Chart(algorithm_name(name), _size_axis(), axis, lines))
    return [Group("Entropy by algorithm", charts)] if charts else []


def by_algorithm(figure: schemas.Figure8) -> Table:
    """Return the accuracy per algorithm: one row for the sizes trained at, one for those beyond."""
    columns = [Column("algorithm"), Column("sizes"), Column("familiar", 1, short="")]
    columns += [Column(condition, 1, "higher") for condition in figure.labels]
    rows = []
    for name, algorithm in figure.algorithms.items():
        for where, beyond in (("trained at", False), ("beyond", True)):
            chosen = indices(algorithm, beyond=beyond)
            if chosen:
                sizes = ", ".join(str(algorithm.sizes[index]) for index in chosen)
                familiar = 100 * float(np.mean([algorithm.familiar[index] for index in chosen]))
                row: list[Any] = [algorithm_name(name), f"{where}: {sizes}", familiar]
                for condition in figure.labels:
                    accuracy = by_training(algorithm, condition, beyond=beyond)
                    row.append(Cell(float(accuracy.mean()), over_trainings(accuracy)))
                rows.append(row)
    return Table(
        "Exact match % by algorithm",
        columns,
        rows,
        "Mean ± standard deviation over trainings. Familiar: the share of answers that name only "
        "items which problems of the sizes trained at have.",
    )


def familiar_by_size(figure: schemas.Figure8, name: str) -> Table:
    """Return the accuracy on familiar answers of one algorithm, by size and condition."""
    algorithm = figure.algorithms[name]
    columns = [Column(f"{name}, familiar answers"), *(Column(str(n), 1) for n in algorithm.sizes)]
    rows = [
        [condition, *percents(curve.mean_familiar)] for condition, curve in algorithm.arms.items()
    ]
    title = f"Familiar answers of {algorithm_name(name)}, % by size"
    return Table(title, columns, rows, terminal=False)


def _table(figure: schemas.Figure8) -> Table:
    columns = [
        Column("Algorithm"),
        Column("Size", 0),
        Column("Trained at", short="Trained"),
        Column("Condition"),
        Column("Exact match %", 1, "higher"),
        Column("± over trainings", 1, short=""),
        Column("Of familiar answers %", 1, "higher", short=""),
        Column("Entropy", 2),
    ]
    rows = []
    for name, algorithm in figure.algorithms.items():
        for index, size in enumerate(algorithm.sizes):
            for condition, curve in algorithm.arms.items():
                cell: Cell = share_cell(curve.mean, curve.std_tests, index)
                trainings = curve.std_trainings
                row = [algorithm_name(name), size, "yes" if size in algorithm.train_sizes else ""]
                row += [figure.labels[condition], cell]
                row += [None if trainings is None else 100 * trainings[index]]
                row += percents([curve.mean_familiar[index]])
                rows.append([*row, curve.mean_entropy[index]])
    return Table(
        "All numbers",
        columns,
        rows,
        "Exact match: mean ± standard deviation over test sets. Familiar answers name only items "
        "that problems of the sizes trained at have.",
        terminal=False,
    )
