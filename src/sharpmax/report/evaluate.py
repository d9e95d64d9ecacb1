"""Does sharpening help this model? An evaluation: accuracy, what changed, and what to use."""

from __future__ import annotations

from typing import Any

from sharpmax.report import provenance
from sharpmax.report.blocks import Axis, Chart, Column, Content, Line, Table, Told
from sharpmax.report.numbers import chance, counted, joined, percent, points
from sharpmax.results import Result

Row = dict[str, Any]


def content(result: Result) -> Content:
    config = result.config
    helps, harms, mixed, neither = _judged(result)
    return Content(
        what=f"evaluation on {config['task']}",
        title=str(config["model"]),
        facts=[
            *provenance.model_of(config),
            f"task {config['task']}",
            f"{counted(config['prompts'], 'text')} of each length",
            f"{counted(config['questions'], 'question')} each",
            f"seed {config['seed']}",
        ],
        findings=[_plain(result), *_told(result, helps, harms, mixed, neither)],
        advice=_advice(helps, mixed),
        blocks=[_accuracy(result), _change(result), _table(result)],
        notes=config["notes"],
    )


def _rows_of(result: Result, arm: str) -> list[Row]:
    return [row for row in result.measurements["rows"] if row["arm"] == arm]


def _judged(result: Result) -> tuple[list[str], list[str], list[str], list[str]]:
    """Ways of sharpening that help, harm, do both by length, or show no difference; in each, those
    that gain most first.
    """
    level = 1 - result.measurements["level"]
    sorted_arms: tuple[list[str], list[str], list[str], list[str]] = ([], [], [], [])

    def gain(arm: str) -> float:
        return float(sum(row["compared"]["difference"] for row in _rows_of(result, arm)))

    for arm in sorted(list(result.config["arms"])[1:], key=gain, reverse=True):
        compared = [row["compared"] for row in _rows_of(result, arm)]
        clear = [one["difference"] for one in compared if one["p_adjusted"] < level]
        up, down = any(one > 0 for one in clear), any(one < 0 for one in clear)
        place = 2 if up and down else 0 if up else 1 if down else 3
        sorted_arms[place].append(arm)
    return sorted_arms


def _plain(result: Result) -> str:
    config = result.config
    (first, *_, last) = [*_rows_of(result, "plain"), *_rows_of(result, "plain")]
    text = f"As it is, the model is right in {percent(first['accuracy']['mean'])} of cases at "
    text += f"{first['length']:,} {config['unit']}"
    if last["length"] != first["length"]:
        text += f" and in {percent(last['accuracy']['mean'])} at {last['length']:,}"
    return f"{text}."


def _told(result: Result, *judged: list[str]) -> list[str]:
    """A sentence for each way that makes a difference, one for all that make none."""
    words = ("helps", "does harm", "helps at some lengths and does harm at others")
    said = []
    for arms, verb in zip(judged, words, strict=False):
        for arm in arms:
            changes = [
                f"{points(row['compared']['difference'])} at {row['length']:,}"
                for row in _rows_of(result, arm)
            ]
            said.append(
                f"{arm} {verb}: points of accuracy {joined(changes)} {result.config['unit']}."
            )
    if judged[3]:
        seen = [row["compared"]["detectable"] for arm in judged[3] for row in _rows_of(result, arm)]
        said.append(
            f"No difference was seen for {joined(judged[3])}; one of {percent(max(seen))} would "
            "have been, four times out of five."
        )
    return said


def _advice(helps: list[str], mixed: list[str]) -> list[str]:
    if not helps:
        extra = f" {joined(mixed)} may, at the lengths where it gains." if mixed else ""
        return [f"Leave the model as it is: no way of sharpening helped at every length.{extra}"]
    return [
        f"On this task use {helps[0]}, which gains most. What helps one task may harm another: "
        "evaluate on what you need before you keep it."
    ]


def _lengths(result: Result) -> Axis:
    config = result.config
    return Axis(config["unit"], scale="log", noun=config["unit"], ticks=config["lengths"])


def _accuracy(result: Result) -> Chart:
    lines = []
    for place, arm in enumerate(result.config["arms"]):
        rows = _rows_of(result, arm)
        shares = {
            end: [100 * row["accuracy"][end] for row in rows] for end in ("mean", "low", "high")
        }
        colour = None if place else "ink"
        lines.append(_line(arm, rows, shares["mean"], shares["low"], shares["high"], colour))
    axis = Axis("right answers, %", digits=1, unit="%", low=0, high=104)
    return Chart("Right answers", _lengths(result), axis, lines, text="Bars: 95 % intervals.")


def _change(result: Result) -> Chart:
    lengths = result.config["lengths"]
    lines = [Line("plain", lengths, [0.0] * len(lengths), colour="ink", dash="dot", marks=0)]
    for arm in list(result.config["arms"])[1:]:
        rows = _rows_of(result, arm)
        compared = [row["log_probability_compared"] for row in rows]
        change, low, high = (
            [one[end] for one in compared] for end in ("difference", "low", "high")
        )
        lines.append(_line(arm, rows, change, low, high))
    return Chart(
        "How much more probable the right answer became",
        _lengths(result),
        Axis("change of log p, nats", digits=2, unit="nats"),
        lines,
        text="Against plain attention on the same questions. Bars: 95 % intervals.",
    )


def _line(
    arm: str,
    rows: list[Row],
    mean: list[float],
    low: list[float],
    high: list[float],
    colour: str | None = None,
) -> Line:
    lengths = [row["length"] for row in rows]
    return Line(arm, lengths, mean, low, high, spread="bars", colour=colour)


def _table(result: Result) -> Table:
    unit = str(result.config["unit"]).capitalize()
    columns = [Column(unit, 0), Column("Way"), Column("Right %", 1), Column("Change", 1)]
    columns += [Column("95 % of the change"), Column("p", 3), Column("log p", 2)]
    columns += [Column("Change of log p", 2)]
    rows = []
    for row in result.measurements["rows"]:
        share, score = row.get("compared"), row.get("log_probability_compared")
        head = [row["length"], row["arm"], 100 * row["accuracy"]["mean"]]
        compared: list[Any] = [None, "", None]
        if share is not None:
            interval = f"{points(share['low'])} to {points(share['high'])}"
            change = Told(share["difference"], points(share["difference"]))
            compared = [change, interval, Told(share["p_adjusted"], chance(share["p_adjusted"]))]
        gained = None if score is None else score["difference"]
        rows.append([*head, *compared, row["log_probability"], gained])
    return Table(
        "All numbers",
        columns,
        rows,
        "Changes are against plain attention, on the same questions. p: exact sign-flip test over "
        "texts (McNemar's if there is one question each), by Holm's method over all lines. log p: "
        "of the right answer, in nats.",
    )
