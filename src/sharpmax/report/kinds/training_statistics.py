"""Attention statistics of a training: every head over the steps, and its alarms."""

from __future__ import annotations

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Frames, Line, Table, Verdict
from sharpmax.report.kinds._shared import model_facts
from sharpmax.report.numbers import plural
from sharpmax.results import Result, schemas

MEASURES = {
    "entropy": ("Entropy", "nats", 2),
    "max_logit": ("Largest logit", "", 1),
    "max_weight": ("Largest weight", "", 3),
    "first_share": ("Weight on the first token", "", 3),
    "varentropy": ("Varentropy", "squared nats", 2),
}
"""The title, unit and decimals of each statistic, in the order of the page."""
COLUMNS = 160
"""Most samples in a map."""
LISTED = 50
"""Most alarms in the table."""

NEXT = "sharpmax scan MODEL  # which heads of the trained model spread as inputs grow"
"""What to type after a training."""


def describe(result: Result) -> Content:
    training = schemas.TrainingStatistics.of(result)
    arrays = {name: np.asarray(result.arrays[name], float) for name in MEASURES}
    maps = [_map(training, name, arrays[name]) for name in MEASURES]
    alarms = _alarm_table(training)
    curves = _curves(training, arrays)
    return Content(
        what="attention while training",
        title=f"Attention of {training.model} while it was trained",
        facts=[
            *model_facts(training),
            f"{plural(len(training.steps), 'sample')}, one every {plural(training.every, 'step')}",
            f"{training.rows} rows of {plural(training.sequences, 'sequence')}",
        ],
        sentences=[
            f"The mean entropy of the heads was {np.nanmean(arrays['entropy'][0]):.2f} nats at "
            f"step {training.steps[0]:,} and {np.nanmean(arrays['entropy'][-1]):.2f} nats at step "
            f"{training.steps[-1]:,}.",
            f"The largest logit of any head was {np.nanmax(arrays['max_logit']):.1f}.",
        ],
        verdict=_verdict(training),
        blocks=[*([alarms] if alarms else []), *maps[:2], curves, *maps[2:]],
        picture=maps[:2],
        notes=list(training.notes),
    )


def _verdict(training: schemas.TrainingStatistics) -> Verdict:
    """Say how many heads crossed a limit."""
    if not training.alarms:
        return Verdict(
            "good",
            f"No head had a logit above {training.max_logit:g}, and no head's entropy collapsed "
            f"below {training.min_entropy:g} nats.",
            command=NEXT,
        )
    counts = {
        "logits": f"had a logit above {training.max_logit:g}",
        "entropy": f"collapsed to an entropy below {training.min_entropy:g} nats",
    }
    details = []
    for kind, what in counts.items():
        some = [alarm for alarm in training.alarms if alarm.kind == kind]
        if some:
            details.append(
                f"{plural(len(some), 'head')} {what}, first layer {some[0].layer} head "
                f"{some[0].head} at step {some[0].step:,}."
            )
    if any(alarm.kind == "logits" for alarm in training.alarms):
        details.append(
            "Lower the learning rate, or bound the logits with sharpmax.hf.QKClipCallback."
        )
    return Verdict("bad", f"{plural(len(training.alarms), 'alarm')}.", details, NEXT)


def _map(training: schemas.TrainingStatistics, name: str, values: np.ndarray) -> Frames:
    """Draw one statistic of every head over the steps."""
    title, unit, digits = MEASURES[name]
    heads = [(layer, head) for layer, count in enumerate(training.heads) for head in range(count)]
    size = len(training.steps)
    samples = np.unique(np.linspace(0, size - 1, min(size, COLUMNS)).round().astype(int))
    shown = np.array([values[samples, layer, head] for layer, head in heads])
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    frame = [[None if np.isnan(x) else round(float(x), 4) for x in row] for row in shown]
    firsts = {index: f"layer {layer}" for index, (layer, head) in enumerate(heads) if head == 0}
    every = max(1, len(samples) // 8)
    ticks = {
        index: f"{training.steps[sample]:,}"
        for index, sample in enumerate(samples)
        if index % every == 0
    }
    return Frames(
        title=f"{title} of every head",
        captions=[""],
        frames=[frame],
        rows=[f"layer {layer} head {head}" for layer, head in heads],
        columns=[f"step {training.steps[sample]:,}" for sample in samples],
        ends=(min(low, 0.0), high if high > min(low, 0.0) else min(low, 0.0) + 1.0),
        unit=unit,
        digits=digits,
        text="One row per head, one column per sample.",
        wide=True,
        sides=("heads", "steps"),
        ticks=(_thin(firsts), ticks),
    )


def _thin(labels: dict[int, str]) -> dict[int, str]:
    """Return at most about ten labels."""
    every = -(-len(labels) // 10)
    return {
        index: label for number, (index, label) in enumerate(labels.items()) if not number % every
    }


def _curves(training: schemas.TrainingStatistics, arrays: dict[str, np.ndarray]) -> Chart:
    """Draw the mean entropy of each layer over the steps."""
    lines = []
    for layer in range(len(training.layers)):
        values = arrays["entropy"][:, layer, : training.heads[layer]]
        means = [None if np.isnan(row).all() else float(np.nanmean(row)) for row in values]
        lines.append(Line(f"layer {layer}", training.steps, means, marks=0))
    # Colours for more than a dozen layers could not be told apart.
    every = -(-len(lines) // 8)
    x = Axis("step", noun="steps")
    y = Axis("mean entropy of the heads, nats", digits=2, unit="nats", low=0)
    return Chart("Entropy by layer", x, y, lines[::every])


def _alarm_table(training: schemas.TrainingStatistics) -> Table | None:
    if not training.alarms:
        return None
    columns = [
        Column("Step", 0),
        Column("Layer", 0),
        Column("Head", 0),
        Column("Alarm"),
        Column("Value", 3),
    ]
    words = {"logits": "largest logit above the limit", "entropy": "entropy collapsed"}
    rows = [
        [alarm.step, alarm.layer, alarm.head, words[alarm.kind], alarm.value]
        for alarm in training.alarms[:LISTED]
    ]
    text = f"The first {LISTED} of {len(training.alarms)}." if len(training.alarms) > LISTED else ""
    return Table("Alarms", columns, rows, text)
