"""Figure 8: CLRS-Text. Does a model stay right on problems larger than those it was trained on?"""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import Axis, Chart, Column, Content, Group, Line, Rule, Table, Told
from sharpmax.report.numbers import counted, percent
from sharpmax.report.table1 import with_spread
from sharpmax.results import Result


def content(result: Result) -> Content:
    found = result.measurements
    algorithms, labels = found["algorithms"], found["labels"]
    arms = list(labels)
    return Content(
        what="Figure 8: CLRS-Text",
        title="CLRS-Text at sizes beyond those trained at",
        facts=[
            str(found["model"]),
            f"{counted(len(algorithms), 'algorithm')}",
            f"trainings of each: {len(result.seeds)}",
            f"{counted(len(found['test_seeds']), 'test set')}",
        ],
        findings=[_overall(algorithms, labels), *_wins(algorithms, labels, arms)],
        advice=[
            "Differences within the bands are chance: see the spread over test sets and over "
            "trainings in the table before making anything of one algorithm."
        ],
        blocks=[_panels(algorithms, labels), *_entropies(algorithms, labels), _table(found)],
        notes=found.get("notes", []),
    )


def _beyond(one: dict[str, Any]) -> list[int]:
    """Places of the sizes that are larger than any trained at; else the last."""
    largest = max(one["train_sizes"], default=0)
    found = [place for place, size in enumerate(one["sizes"]) if size > largest]
    return found or [len(one["sizes"]) - 1]


def _score(one: dict[str, Any], arm: str) -> float:
    places = _beyond(one)
    return float(sum(one["arms"][arm]["mean"][place] for place in places) / len(places))


def _overall(algorithms: dict[str, Any], labels: dict[str, str]) -> str:
    means = {
        arm: sum(_score(one, arm) for one in algorithms.values()) / len(algorithms)
        for arm in labels
    }
    told = "; ".join(f"{labels[arm]} {percent(mean)}" for arm, mean in means.items())
    return f"Exact match beyond the sizes trained at, mean over the algorithms: {told}."


def _wins(algorithms: dict[str, Any], labels: dict[str, str], arms: list[str]) -> list[str]:
    """Each arm against the first."""
    said = []
    for arm in arms[1:]:
        better = sum(_score(one, arm) > _score(one, arms[0]) for one in algorithms.values())
        worse = sum(_score(one, arm) < _score(one, arms[0]) for one in algorithms.values())
        said.append(
            f"“{labels[arm]}” is better than “{labels[arms[0]]}” in {better} of "
            f"{len(algorithms)} algorithms and worse in {worse}."
        )
    return said


def _name(algorithm: str) -> str:
    return algorithm.replace("_", " ")


def _sizes() -> Axis:
    return Axis("size of the problem", noun="(size)")


def _panels(algorithms: dict[str, Any], labels: dict[str, str]) -> Group:
    charts = []
    for name, one in algorithms.items():
        lines = [
            with_spread(labels[arm], one["sizes"], curve["mean"], curve["std_tests"])
            for arm, curve in one["arms"].items()
        ]
        if min(one["familiar"]) < 1:
            shares = [100 * share for share in one["familiar"]]
            lines.append(
                Line("answers of items seen in training", one["sizes"], shares, dash="dot", marks=0)
            )
        rules = [Rule("x", size) for size in one["train_sizes"]]
        axis = Axis("exact match, %", digits=1, unit="%", low=-2, high=104, ticks=[0, 50, 100])
        charts.append(Chart(_name(name), _sizes(), axis, lines, rules))
    text = (
        "Mean over trainings and test sets; band: standard deviation over test sets. Dotted: sizes "
        "trained at. A model that was never asked for the twentieth item of a list cannot be "
        "expected to name it: the last line is the share of answers without such items."
    )
    return Group("Exact match by algorithm", charts, text)


def _entropies(algorithms: dict[str, Any], labels: dict[str, str]) -> list[Group]:
    charts = []
    for name, one in algorithms.items():
        lines = [
            Line(labels[arm], one["sizes"], curve["mean_entropy"])
            for arm, curve in one["arms"].items()
            if any(value is not None for value in curve["mean_entropy"])
        ]
        if lines:
            axis = Axis("entropy of the heads, nats", digits=2, unit="nats", low=0)
            charts.append(Chart(_name(name), _sizes(), axis, lines))
    return [Group("Entropy by algorithm", charts)] if charts else []


def _table(found: dict[str, Any]) -> Table:
    columns = [Column("Algorithm"), Column("Size", 0), Column("Trained at"), Column("Arm")]
    columns += [Column("Exact match %", 1), Column("± over trainings", 1)]
    columns += [Column("Of familiar answers %", 1), Column("Entropy", 2)]
    rows = []
    for name, one in found["algorithms"].items():
        for place, size in enumerate(one["sizes"]):
            for arm, curve in one["arms"].items():
                tests, trainings = curve["std_tests"], curve["std_trainings"]
                mean = curve["mean"][place]
                spread = "" if tests is None else f" ± {100 * tests[place]:.1f}"
                over = None if trainings is None else 100 * trainings[place]
                trained = "yes" if size in one["train_sizes"] else ""
                told = Told(mean, f"{100 * mean:.1f}{spread}")
                known, entropy = curve["mean_familiar"][place], curve["mean_entropy"][place]
                known = None if known is None else 100 * known
                row = [_name(name), size, trained, found["labels"][arm], told, over, known, entropy]
                rows.append(row)
    note = (
        "Exact match: ± over test sets. Familiar answers name only items that problems of the "
        "sizes trained at have."
    )
    return Table("All numbers", columns, rows, note)
