"""An evaluation: does sharpening help this model on this task, and what should you use?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sharpmax.report.blocks import (
    Axis,
    Cell,
    Chart,
    Column,
    Content,
    DotRow,
    Dots,
    Line,
    Mark,
    Table,
    Verdict,
)
from sharpmax.report.kinds._shared import model_facts
from sharpmax.report.numbers import join, p_value, plural, points, share
from sharpmax.report.palette import looks, name
from sharpmax.results import Result, schemas


def describe(result: Result) -> Content:
    evaluation = schemas.Evaluation.of(result)
    effects = sort_by_effect(evaluation)
    return Content(
        what=f"evaluation on {evaluation.task}",
        title=evaluation.model,
        facts=[
            *model_facts(evaluation),
            f"task {evaluation.task}",
            f"{plural(evaluation.prompts, 'text')} of each length",
            f"{plural(evaluation.questions, 'question')} per text",
            f"seed {evaluation.seed}",
        ],
        sentences=[_plain(evaluation), *_sentences(evaluation, effects)],
        verdict=_verdict(evaluation, effects),
        blocks=[_changes(evaluation, effects), _accuracy(evaluation), _table(evaluation)],
        notes=evaluation.notes,
    )


SOLVED = 0.99
"""Share of right answers from which a task counts as solved by the plain model."""


@dataclass(frozen=True)
class Effects:
    """Conditions by their effect; in each list those that gain most come first."""

    helps: list[str]
    harms: list[str]
    mixed: list[str]
    none: list[str]


def sort_by_effect(evaluation: schemas.Evaluation) -> Effects:
    """Sort the conditions by whether their effect on the answers is clear, and its direction."""
    level, effects = 1 - evaluation.level, Effects([], [], [], [])

    def gain(condition: str) -> float:
        rows = evaluation.rows_of(condition)
        return sum(row.compared.difference for row in rows if row.compared)

    for condition in sorted(list(evaluation.arms)[1:], key=gain, reverse=True):
        compared = [row.compared for row in evaluation.rows_of(condition) if row.compared]
        clear = [change.difference for change in compared if change.p_adjusted < level]
        up, down = any(value > 0 for value in clear), any(value < 0 for value in clear)
        kind = "mixed" if up and down else "helps" if up else "harms" if down else "none"
        getattr(effects, kind).append(condition)
    return effects


def _plain(evaluation: schemas.Evaluation) -> str:
    rows = evaluation.rows_of(next(iter(evaluation.arms)))
    first, last = rows[0], rows[-1]
    text = f"As it is, the model answers {share(first.accuracy.mean)} % correctly at "
    text += f"{first.length:,} {evaluation.unit}"
    if last.length != first.length:
        text += f" and {share(last.accuracy.mean)} % at {last.length:,}"
    return f"{text}."


def change(evaluation: schemas.Evaluation, condition: str, length: int) -> str:
    """Return the accuracy of plain attention and of a condition at one length: 22.3 → 57.7 %."""
    plain, other = (
        next(row for row in evaluation.rows_of(arm) if row.length == length)
        for arm in (next(iter(evaluation.arms)), condition)
    )
    return f"{share(plain.accuracy.mean)} → {share(other.accuracy.mean)} %"


def _sentences(evaluation: schemas.Evaluation, effects: Effects) -> list[str]:
    sentences = []
    for conditions, verb in ((effects.helps, "helps"), (effects.harms, "does harm")):
        for condition in conditions:
            rows = [row for row in evaluation.rows_of(condition) if row.compared]
            most = max(rows, key=lambda row: abs(row.compared.difference if row.compared else 0))
            sentences.append(
                f"“{name(condition)}” {verb}, most at {most.length:,} {evaluation.unit}: "
                f"{change(evaluation, condition, most.length)} correct."
            )
    sentences += [
        f"“{name(condition)}” helps at some lengths and does harm at others."
        for condition in effects.mixed
    ]
    if effects.none:
        detectable = max(
            row.compared.detectable
            for condition in effects.none
            for row in evaluation.rows_of(condition)
            if row.compared
        )
        names = join([name(condition) for condition in effects.none])
        sentences.append(
            f"No measurable effect for {names} (80 % power to detect a change of "
            f"{share(detectable)} points)."
        )
    return sentences


def _verdict(evaluation: schemas.Evaluation, effects: Effects) -> Verdict:
    if effects.helps:
        best = effects.helps[0]
        return Verdict(
            "good",
            f"On this task, use {name(best)}, which gains most.",
            ["What helps one task may harm another: evaluate on the tasks that you need."],
            command="sharpmax evaluate MODEL --task TASK --policy "
            f"{_policy_option(evaluation, best)}",
        )
    details = []
    plain = evaluation.rows_of(next(iter(evaluation.arms)))
    solved = min(row.accuracy.mean for row in plain) >= SOLVED
    if solved and not effects.harms and not effects.mixed:
        return Verdict(
            "good",
            f"No harm: the model solves this task as it is, and "
            f"{join([name(condition) for condition in effects.none])} "
            f"{'changes' if len(effects.none) == 1 else 'change'} that not measurably.",
            ["A task that the model gets wrong tells more."],
            command="sharpmax diagnose MODEL --task lookup",
        )
    if effects.mixed:
        names = join([name(condition) for condition in effects.mixed])
        details.append(f"{names} may help at the lengths where accuracy rises.")
    return Verdict(
        "bad" if effects.harms or effects.mixed else "neutral",
        "Leave the model as it is: nothing that was tried helps at every length.",
        details,
        command="sharpmax tune MODEL",
    )


def _policy_option(evaluation: schemas.Evaluation, condition: str) -> str:
    """Return how `--policy` names a condition: a calibration is the file that has its name."""
    by_file = "calibration" in evaluation.arms[condition] and condition != "tuned"
    return f"{condition}.json" if by_file else condition


def _length_axis(evaluation: schemas.Evaluation) -> Axis:
    unit = evaluation.unit
    return Axis(unit, scale="log", noun=unit, ticks=evaluation.lengths)


def _accuracy(evaluation: schemas.Evaluation) -> Chart:
    lines = []
    for condition, look in looks(evaluation.arms).items():
        rows = evaluation.rows_of(condition)
        lengths = [row.length for row in rows]
        mean, low, high = (
            [100 * getattr(row.accuracy, end) for row in rows] for end in ("mean", "low", "high")
        )
        lines.append(Line.of(look, lengths, mean, low=low, high=high, spread="bars"))
    return Chart(
        "Correct answers",
        _length_axis(evaluation),
        Axis("correct answers, %", digits=1, unit="%", low=0, high=104),
        lines,
        text="Bars: 95 % intervals.",
    )


def _mark(change: schemas.Change | None, factor: float) -> Mark | None:
    if change is None:
        return None
    return Mark(factor * change.difference, factor * change.low, factor * change.high)


def _changes(evaluation: schemas.Evaluation, effects: Effects) -> Dots:
    """Draw what each condition changes at each length, those that gain most first."""
    look = looks(evaluation.arms)
    rows = []
    for condition in (*effects.helps, *effects.mixed, *effects.none, *effects.harms):
        for index, row in enumerate(evaluation.rows_of(condition)):
            marks = [_mark(row.compared, 100.0), _mark(row.log_probability_compared, 1.0)]
            label = f"{row.length:,} {evaluation.unit}"
            heading = "" if index else look[condition].name
            rows.append(DotRow(label, look[condition].colour, marks, heading))
    return Dots(
        "What each condition changes",
        [
            Axis("right answers, change in points", digits=1, unit="points"),
            Axis("log p of the right answer, change in nats", digits=2, unit="nats"),
        ],
        rows,
        "Against plain attention on the same questions; bars: 95 % intervals. Right of the line is "
        "better.",
        rule=0.0,
    )


def _table(evaluation: schemas.Evaluation) -> Table:
    columns = [
        Column(evaluation.unit.capitalize(), 0),
        Column("Condition"),
        Column("Correct %", 1, "higher"),
        Column("Change", 1),
        Column("95 % of the change", short="95 %"),
        Column("p", 3),
        Column("log p", 2, "higher", short=""),
        Column("Change of log p", 2, short="log p"),
    ]
    rows = []
    for row in evaluation.rows:
        change, score = row.compared, row.log_probability_compared
        cells: list[Any] = [row.length, name(row.arm), 100 * row.accuracy.mean]
        if change is None:
            cells += [None, "", None]
        else:
            interval = f"{points(change.low)} to {points(change.high)}"
            cells += [Cell(change.difference, points(change.difference)), interval]
            cells += [Cell(change.p_adjusted, p_value(change.p_adjusted))]
        rows.append([*cells, row.log_probability, None if score is None else score.difference])
    return Table(
        "All numbers",
        columns,
        rows,
        "Changes are against plain attention, on the same questions, in percentage points. p: "
        "exact sign-flip test over texts (McNemar's with one question per text), corrected by "
        "Holm's method over all rows. log p: of the correct answer, in nats.",
    )
