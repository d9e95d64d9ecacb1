"""The study: which conditions help or harm three models on lookup and RULER, and what they cost."""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import (
    Axis,
    Block,
    Cell,
    Column,
    Content,
    DotRow,
    Dots,
    Mark,
    Table,
    Verdict,
)
from sharpmax.report.numbers import ABSENT, join, p_value, plural, points, share
from sharpmax.report.palette import looks, name
from sharpmax.results import Result, schemas

PLAIN = "plain"
SHORT = "short tasks"
TITLES = {"lookup": "lookup", "ruler": "RULER", SHORT: "short tasks"}
VERDICTS = ("helps", "harms", "undecided", "unfinished")


def describe(result: Result) -> Content:
    study = schemas.Study.of(result)
    return Content(
        what="study of models on long inputs",
        title="Which way of sharpening helps, on lookup and RULER",
        facts=[
            plural(len(study.models), "model"),
            plural(len(study.conditions), "condition"),
            f"{study.primary_tests} primary tests",
            f"seed {study.seed}",
        ],
        sentences=[*_plain(study), *_answers(study), *_missing(study)],
        verdict=_verdict(study),
        blocks=[
            *_forest(study),
            _plain_scores(study),
            verdict_table(study),
            cost_table(study),
            cell_table(study),
        ],
        notes=[f"{key}: {note}" for key, model in study.models.items() for note in model.notes],
        picture=[*_forest(study), _plain_scores(study)],
    )


# Sentences.


def _plain(study: schemas.Study) -> list[str]:
    sentences = []
    for model in study.models:
        parts = []
        for family in study.families:
            pool = study.pool(model, family, PLAIN)
            if pool is not None and pool.score is not None:
                parts.append(f"{share(pool.score.mean)} % on {TITLES[family]}")
        if parts:
            sentences.append(f"The plain {model} scores {join(parts)}.")
    return sentences


def _answers(study: schemas.Study) -> list[str]:
    """Say for each model which conditions help and which harm."""
    sentences = []
    for model in study.models:
        for verdict, verbs in (("helps", ("helps", "help")), ("harms", ("does harm", "do harm"))):
            conditions = [
                name(row.condition)
                for row in study.verdicts
                if (row.model, row.verdict) == (model, verdict)
            ]
            if conditions:
                verb = verbs[len(conditions) > 1]
                sentences.append(f"For {model}, {join(conditions)} {verb}.")
    return sentences


def _missing(study: schemas.Study) -> list[str]:
    """Say what has not been measured."""
    sentences = []
    for model in study.models:
        parts = []
        for group in (*study.families, SHORT):
            pools = [row for row in study.pools if (row.model, row.group) == (model, group)]
            wanted = max((row.cells for row in pools), default=0) * len(study.conditions)
            missing = wanted - sum(row.measured for row in pools)
            if missing:
                parts.append(f"{missing} of {wanted} cells of {TITLES[group]}")
        if parts:
            sentences.append(f"Not measured yet for {model}: {join(parts)}.")
    absent = [model for model in study.sizes if model not in study.models]
    return [*sentences, *([f"Not measured at all yet: {join(absent)}."] if absent else [])]


def _verdict(study: schemas.Study) -> Verdict:
    counts = {
        verdict: sum(row.verdict == verdict for row in study.verdicts) for verdict in VERDICTS
    }
    if not study.verdicts:
        return Verdict(
            "neutral", "Nothing has been compared yet.", command="sharpmax reproduce study"
        )
    names = ("benefit", "harm", "undecided", "unfinished")
    found = [
        f"{word} in {counts[verdict]}"
        for verdict, word in zip(VERDICTS, names, strict=True)
        if counts[verdict]
    ]
    sentence = f"{plural(len(study.verdicts), 'pair')} of model and condition: {join(found)}."
    command = "sharpmax reproduce study" if counts["unfinished"] else "sharpmax tune MODEL"
    return Verdict("mixed" if counts["helps"] else "neutral", sentence, command=command)


# Charts and tables.


def _forest(study: schemas.Study) -> list[Block]:
    """Draw the change of the score against the plain model, per family that has any test."""
    look = looks(study.conditions)
    compared = {pool.group for pool in study.pools if pool.compared is not None}
    families = [family for family in study.families if family in compared]
    rows = []
    for model in study.models:
        first = True
        for condition in study.conditions:
            pools = [study.pool(model, family, condition) for family in families]
            marks = [_mark(pool.compared if pool else None) for pool in pools]
            if condition == PLAIN or not any(marks):
                continue
            heading, first = model if first else "", False
            rows.append(DotRow(name(condition), look[condition].colour, marks, heading))
    if not rows:
        return []
    return [
        Dots(
            "What each condition changes",
            [
                Axis(f"{TITLES[family]}, change in points", digits=1, unit="points")
                for family in families
            ],
            rows,
            "Change of the score against the plain model, on the same prompts; bars: 95 % "
            "intervals over prompts. Right of the line is better. Nothing is drawn where a family "
            "is not finished.",
            rule=0.0,
        )
    ]


def _plain_scores(study: schemas.Study) -> Dots:
    """Draw how the plain models answer in every cell."""
    colours = [look.colour for look in looks(study.models).values()]
    rows = []
    for model, colour in zip(study.models, colours, strict=True):
        cells = [row for row in study.rows if (row.model, row.condition) == (model, PLAIN)]
        for index, row in enumerate(cells):
            mark = Mark(100 * row.score.mean, 100 * row.score.low, 100 * row.score.high)
            label = f"{row.task}, {row.length:,}" if row.length else row.task
            rows.append(DotRow(label, colour, [mark], "" if index else model))
    return Dots(
        "The plain models",
        [Axis("score, %", digits=1, unit="%", low=0, high=104)],
        rows,
        "By task and length, in names for lookup and in tokens for RULER; bars: 95 % intervals "
        "over prompts.",
    )


def _mark(change: schemas.StudyChange | None) -> Mark | None:
    if change is None:
        return None
    return Mark(100 * change.difference, 100 * change.low, 100 * change.high)


def _change(change: schemas.StudyChange | None) -> Cell:
    if change is None:
        return Cell(None, ABSENT)
    text = f"{points(change.difference)} ({points(change.low)} to {points(change.high)})"
    return Cell(change.difference, text)


def verdict_table(study: schemas.Study) -> Table:
    """Return the primary tests and the verdict of every model and condition."""
    columns = [Column("Model"), Column("Condition")]
    for family in study.families:
        columns += [
            Column(f"{TITLES[family]}, points", short=TITLES[family]),
            Column(f"p, {TITLES[family]}", 3, short="p"),
            Column(f"Detectable, {TITLES[family]}", short=""),
        ]
    rows: list[list[Any]] = []
    for row in study.verdicts:
        cells: list[Any] = [row.model, name(row.condition)]
        for family in study.families:
            pool = study.pool(row.model, family, row.condition)
            change = pool.compared if pool else None
            cells.append(_change(change))
            if change is None:
                cells += [None, ABSENT]
                continue
            cells.append(Cell(change.p_adjusted, p_value(change.p_adjusted)))
            cells.append(f"{share(change.detectable)} / {share(change.detectable_strictly)}")
        reasons = f": {join(row.reasons)}" if row.reasons else ""
        rows.append([*cells, f"{row.verdict}{reasons}"])
    return Table(
        "Primary tests and verdicts",
        [*columns, Column("Verdict")],
        rows,
        "Change of the score against the plain model in percentage points, with 95 % intervals "
        "over prompts. p: exact sign-flip test over prompts, corrected by Holm's method for all "
        f"{study.primary_tests} primary tests, also where some are missing. Detectable: the change "
        "found with 80 % power in a single test, and at the strictest step of the correction, at "
        "the variation that was observed.",
    )


def cost_table(study: schemas.Study) -> Table:
    """Return what every condition costs on short tasks and ordinary text."""
    rows: list[list[Any]] = []
    for row in study.verdicts:
        pool = study.pool(row.model, SHORT, row.condition)
        costs = []
        for cell in ("essays", "guard"):
            text = study.text(row.model, cell, row.condition)
            change = text.nats_change if text else None
            costs.append(None if change is None else 100 * change.difference)
        facts = study.models[row.model].facts.get(row.condition, {})
        heads = facts.get("changed_heads")
        rows.append(
            [
                row.model,
                name(row.condition) + (" (nothing gained)" if "failure" in facts else ""),
                _change(pool.compared if pool else None),
                *costs,
                "all" if heads is None and "failure" not in facts else str(heads or 0),
            ]
        )
    return Table(
        "What it costs",
        [
            Column("Model"),
            Column("Condition"),
            Column("Short tasks, points", short="short tasks"),
            Column("Essays, nats %", 2, "lower", short="essays"),
            Column("Guard text, nats %", 2, "lower", short="guard"),
            Column("Heads changed", short="heads"),
        ],
        rows,
        "Short tasks: lookup among 8 names and HellaSwag, change of the score against the plain "
        "model with its 95 % interval. Nats: change per token of ordinary text, after the first "
        "128 tokens.",
    )


def cell_table(study: schemas.Study) -> Table:
    """Return every cell that was measured."""
    rows: list[list[Any]] = []
    for row in study.rows:
        change = row.compared
        rows.append(
            [
                row.model,
                row.task,
                row.length or None,
                name(row.condition),
                row.prompts,
                100 * row.score.mean,
                _change(change),
                None if change is None else Cell(change.p_adjusted, p_value(change.p_adjusted)),
                row.log_probability,
            ]
        )
    return Table(
        "All cells",
        [
            Column("Model"),
            Column("Task"),
            Column("Length", 0),
            Column("Condition"),
            Column("Prompts", 0),
            Column("Score %", 1, "higher"),
            Column("Change, points"),
            Column("p", 3),
            Column("log p", 2, "higher"),
        ],
        rows,
        "Length: names for lookup, tokens for RULER. Score: RULER's share of right strings, or the "
        "share of right answers. p: exact sign-flip test over prompts, corrected by Holm's method "
        "over all cells of all models. log p: of the right answer, in nats; of the choices for "
        "HellaSwag.",
        terminal=False,
    )
