"""The generated part of docs/study.md: what the study and the diagnoses of its models say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sharpmax import report
from sharpmax.report.blocks import Cell, Column, Table
from sharpmax.report.kinds import study as kind
from sharpmax.report.numbers import ABSENT, percent, share
from sharpmax.report.renderers import markdown
from sharpmax.results import Result, schemas

NOT_RUN = "The first run is not finished, and no result is published yet."

DIAGNOSES = {
    ("SmolLM2 135M", "lookup"): "diagnose.json",
    ("SmolLM2 135M", "niah_multikey_2"): "smollm2/diagnose.json",
    ("Gemma 3 270M", "lookup"): "gemma-3-270m/diagnose.json",
    ("Gemma 3 270M", "niah_multikey_2"): "gemma-3-270m/niah/diagnose.json",
    ("Qwen2.5-Coder 1.5B", "lookup"): "qwen2.5-coder-1.5b/diagnose.json",
    ("Qwen2.5-Coder 1.5B", "niah_multikey_2"): "qwen2.5-coder-1.5b/niah/diagnose.json",
}
"""Results of `sharpmax diagnose` by model and task."""

VERDICTS = {
    "dispersion": "yes: the answer is still ranked first, but has too little weight",
    "ranking": "no: another token is ranked first, so sharpening these heads alone cannot help",
    "window": "no: the answer is outside the window",
    "nothing lost": "no: the heads lose nothing",
    "no heads": "no: no head finds the answer",
}

NOTHING_LOST = "not at these lengths: no fewer answers are right"


def study(results: Mapping[str, Any]) -> str:
    """Return the results of docs/study.md."""
    found = results["study.json"]
    parts = [_measured(found) if isinstance(found, Result) else NOT_RUN]
    table = diagnoses(results)
    if table.rows:
        parts += [
            "### What limits the plain models",
            markdown.table(table),
            table.text,
        ]
    return "\n\n".join(parts)


def _measured(result: Result) -> str:
    content = report.describe(result)
    measured = schemas.Study.of(result)
    sentences = "\n".join(f"- {sentence}" for sentence in content.sentences)
    parts = [sentences, "![Changes of the scores](../results/study.png)"] if content.picture else [
        sentences
    ]  # fmt: skip
    tables = (
        kind.verdict_table(measured),
        kind.cost_table(measured),
        plain_table(measured),
    )
    for table in tables:
        parts += [f"### {table.title}", markdown.table(table), table.text]
    return "\n\n".join(parts)


def plain_table(measured: schemas.Study) -> Table:
    """Return the scores of the plain models in every cell."""
    rows: dict[tuple[str, int], dict[str, Cell]] = {}
    for row in measured.rows:
        if row.condition == kind.PLAIN:
            ends = f"{share(row.score.low)} to {share(row.score.high)}"
            text = f"{share(row.score.mean)} ({ends})"
            rows.setdefault((row.task, row.length), {})[row.model] = Cell(row.score.mean, text)
    return Table(
        "The plain models",
        [Column("Task"), Column("Length", 0), *(Column(model) for model in measured.models)],
        [
            [task, length or None, *(cells.get(model, ABSENT) for model in measured.models)]
            for (task, length), cells in rows.items()
        ],
        "Scores in percent with 95 % intervals over prompts. Where a score is 0 even at the "
        "shortest length, the model does not know the task, and sharpening is pointless.",
    )


def _dispersion_share(split: schemas.NeedleSplit | None) -> str:
    """Format the share of the lost weight that dispersion explains, with its interval."""
    if split is None or split.dispersion_share is None:
        return ABSENT
    text = percent(split.dispersion_share, 0)
    ends = split.dispersion_share_low, split.dispersion_share_high
    if ends[0] is None or ends[1] is None:
        return text
    return f"{text} ({100 * ends[0]:z.0f} to {100 * ends[1]:z.0f})"


def diagnoses(results: Mapping[str, Any]) -> Table:
    """Return per model and task whether attention limits the answers, by `sharpmax diagnose`."""
    rows = []
    for (model, task), file in DIAGNOSES.items():
        if results[file] is None:
            continue
        found = schemas.Diagnosis.of(results[file])
        first, last = found.rows[0], found.rows[-1]
        lost = last.accuracy.mean < first.accuracy.mean
        rows.append(
            [
                model,
                task,
                f"{first.length:,} → {last.length:,} {found.unit}",
                f"{share(first.accuracy.mean)} → {share(last.accuracy.mean)}",
                len(found.retrieval_heads),
                _dispersion_share(last.split),
                VERDICTS[found.cause] if lost else NOTHING_LOST,
            ]
        )
    return Table(
        "What limits the plain models",
        [
            Column("Model"),
            Column("Task"),
            Column("Length"),
            Column("Right, %"),
            Column("Retrieval heads", 0),
            Column("Lost to dispersion"),
            Column("Dispersion limits it"),
        ],
        rows,
        "Of the plain models in float32. Retrieval heads find the answer at the shorter length. "
        "Lost to dispersion: the share of the weight that these heads lose while they still rank "
        "the answer first, with its 95 % interval over prompts where there is one. "
        "[Diagnose](diagnose.md) explains the split.",
    )
