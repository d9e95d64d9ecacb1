"""Small models trained with different normalisers: accuracy and sharpness far beyond training."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharpmax.report.blocks import Axis, Chart, Column, Content, Group, Line, Table, Verdict
from sharpmax.report.kinds._shared import accuracy_axis, share_cell, share_line
from sharpmax.report.numbers import join, percent, plural, share
from sharpmax.report.palette import METHODS, Look
from sharpmax.results import Result, schemas

LOOKS = {
    "softmax": METHODS["softmax"],
    "softmax-tuned": Look("softmax, then tune on 32 to 128", "series-1", "dot"),
    "softmax-tuned-long": Look("softmax, then tune on 128 to 512", "series-1"),
    "softmax-tuned-longest": Look("softmax, then tune on 512 to 2,048", "series-1", "dash"),
    "softmax-paper": Look("softmax, then adaptive temperature", "series-2", "dash"),
    "scalable-softmax": METHODS["scalable-softmax"],
    "adaptive-temperature": Look("trained with adaptive temperature", "series-2"),
    "entmax": Look("1.5-entmax", "series-4"),
}
"""How each condition is drawn."""


def describe(result: Result) -> Content:
    run = schemas.TrainNormalisers.of(result)
    if not run.rows:
        return Content(
            what="training with normalisers",
            title="Small language models trained with different normalisers",
            facts=[],
            sentences=[],
            verdict=Verdict(
                "neutral",
                "No condition is finished yet.",
                command="sharpmax reproduce train-normalisers",
            ),
            blocks=[],
        )
    charts = Group("Beyond the sizes of training", [_accuracy(run), _nats(run), _sharpness(run)])
    return Content(
        what="training with normalisers",
        title="Small language models trained with different normalisers",
        facts=[
            f"{run.layers} layers of {run.heads} heads, width {run.hidden}",
            f"{run.steps:,} steps on texts of 2 to {run.largest} items",
            plural(len(run.seeds), "seed"),
            f"{run.texts * min(run.questions, run.sizes[-1])} questions per size and seed",
        ],
        sentences=_sentences(run),
        verdict=_verdict(run),
        blocks=[charts, longest_texts(run), _table(run), _trainings(run), _entropies(run, result)],
        picture=[charts],
    )


def _mean(run: schemas.TrainNormalisers, name: str) -> np.ndarray:
    return np.mean([row.accuracy for row in run.of_condition(name)], axis=0)


def _spread(run: schemas.TrainNormalisers, name: str) -> np.ndarray | None:
    rows = [row.accuracy for row in run.of_condition(name)]
    return np.std(rows, axis=0, ddof=1) if len(rows) > 1 else None


def _present(run: schemas.TrainNormalisers) -> list[str]:
    return [name for name in run.summaries if run.of_condition(name)]


def _verdict(run: schemas.TrainNormalisers) -> Verdict:
    """Name the condition with the most right answers on the longest texts."""
    names = _present(run)
    last = {name: float(_mean(run, name)[-1]) for name in names}
    best = max(last, key=lambda name: last[name])
    sentence = (
        f"On texts of {run.sizes[-1]:,} items, {run.sizes[-1] // run.largest} times the largest of "
        f"training, {LOOKS[best].name} has the most right answers: {_last_share(run, best)} %."
    )
    details = []
    if "softmax" in last and best != "softmax":
        details.append(f"Softmax has {_last_share(run, 'softmax')} %.")
    weights = {name: weight for name in names if (weight := _last_weight(run, name)) is not None}
    if "softmax" in weights and len(weights) > 1:
        sharpest = max(weights, key=lambda name: weights[name])
        details.append(
            f"There the sharpest head has a largest weight of {weights['softmax']:.2f} "
            f"with softmax, and of {weights[sharpest]:.2f} with {LOOKS[sharpest].name}."
        )
    for name in names:
        units = run.of_condition(name)
        found_nothing = sum("nothing_to_gain" in unit.facts for unit in units)
        if found_nothing:
            details.append(
                f"{LOOKS[name].name}: tune found nothing to gain in {found_nothing} of "
                f"{plural(len(units), 'model')}, which is then the softmax model."
            )
    return Verdict("neutral", sentence, details, "sharpmax reproduce train-normalisers")


def _last_share(run: schemas.TrainNormalisers, name: str) -> str:
    """Return the share of right answers on the longest texts, with its standard deviation."""
    spread = _spread(run, name)
    return share(float(_mean(run, name)[-1]), None if spread is None else float(spread[-1]))


def _last_weight(run: schemas.TrainNormalisers, name: str) -> float | None:
    """Return the largest weight of the sharpest head on the longest texts."""
    known = [row.largest_weight[-1] for row in run.of_condition(name) if row.largest_weight]
    values = [value for value in known if value is not None]
    return float(np.mean(values)) if values else None


def _sentences(run: schemas.TrainNormalisers) -> list[str]:
    names = _present(run)
    short = run.sizes.index(run.largest) if run.largest in run.sizes else 0
    told = [f"{LOOKS[name].name} {percent(float(_mean(run, name)[short]))}" for name in names]
    far = [f"{LOOKS[name].name} {percent(float(_mean(run, name)[-1]))}" for name in names]
    return [
        f"Right answers at {run.sizes[short]:,} items: {join(told)}.",
        f"At {run.sizes[-1]:,} items: {join(far)}.",
    ]


def _size_axis(run: schemas.TrainNormalisers) -> Axis:
    return Axis("items in the text", scale="log", noun="items", ticks=run.sizes)


def _accuracy(run: schemas.TrainNormalisers) -> Chart:
    lines = []
    for name in _present(run):
        spread = _spread(run, name)
        lines.append(
            share_line(
                LOOKS[name],
                run.sizes,
                _mean(run, name).tolist(),
                None if spread is None else spread.tolist(),
            )
        )
    return Chart("Right answers", _size_axis(run), accuracy_axis(), lines)


def _nats(run: schemas.TrainNormalisers) -> Chart:
    """Draw the mean negative log-probability of the right answers."""
    lines = [
        Line.of(LOOKS[name], run.sizes, np.mean(values, axis=0).tolist())
        for name in _present(run)
        if (values := [row.nats for row in run.of_condition(name)])
    ]
    y = Axis("nats per answer, lower is better", digits=3, unit="nats", low=0)
    return Chart("Surprise at the right answer", _size_axis(run), y, lines)


def _sharpness(run: schemas.TrainNormalisers) -> Chart:
    """Draw the largest weight at the questions; where something is added, it was not recorded."""
    lines = []
    for name in _present(run):
        rows = [row.largest_weight for row in run.of_condition(name)]
        known = [row for row in rows if row is not None]
        if known:
            lines.append(Line.of(LOOKS[name], run.sizes, np.mean(known, axis=0).tolist()))
    y = Axis("largest weight of the sharpest head", digits=3, low=0, high=1.04)
    return Chart("Sharpness", _size_axis(run), y, lines)


def _table(run: schemas.TrainNormalisers) -> Table:
    from_training = [size for size in run.sizes if size >= run.largest]
    columns = [Column("Condition")]
    shown = [run.sizes.index(size) for size in from_training]
    for place, index in enumerate(shown):
        dropped = place % 2 and place != len(shown) - 1
        size = f"{run.sizes[index]:,}"
        columns.append(Column(f"{size} items, %", 1, "higher", short="" if dropped else size))
    rows: list[list[Any]] = []
    for name in _present(run):
        mean, spread = _mean(run, name).tolist(), _spread(run, name)
        std = None if spread is None else spread.tolist()
        rows.append([LOOKS[name].name, *(share_cell(mean, std, index) for index in shown)])
    seeds = len(run.seeds)
    text = f"Right answers in %: mean ± standard deviation over {plural(seeds, 'seed')}."
    if seeds == 1:
        text = "Right answers in %, one seed."
    return Table("Right answers by size", columns, rows, text)


def longest_texts(run: schemas.TrainNormalisers) -> Table:
    """Compare the conditions at the sizes of training and on the longest texts."""
    first = run.sizes.index(run.largest) if run.largest in run.sizes else 0
    shown = sorted({first, *range(max(first, len(run.sizes) - 3), len(run.sizes))})
    last = f"{run.sizes[-1]:,}"
    columns = [
        Column("Condition"),
        *(Column(f"{run.sizes[index]:,} items, %", 1, "higher") for index in shown),
        Column(f"nats, {last}", 2, "lower"),
        Column(f"largest weight, {last}", 2, "higher"),
    ]
    rows: list[list[Any]] = []
    for name in _present(run):
        mean, spread = _mean(run, name).tolist(), _spread(run, name)
        std = None if spread is None else spread.tolist()
        nats = float(np.mean([row.nats[-1] for row in run.of_condition(name)]))
        shares = [share_cell(mean, std, index) for index in shown]
        rows.append([LOOKS[name].name, *shares, nats, _last_weight(run, name)])
    text = "Largest weight: of the sharpest head, at the questions."
    return Table("On the longest texts", columns, rows, text, terminal=False)


def _trainings(run: schemas.TrainNormalisers) -> Table:
    """List what each condition is, and its training."""
    columns = [
        Column("Condition"),
        Column("What it is", short=""),
        Column("Loss at the end", 4, "lower", short="loss"),
        Column("Seconds", 0, "lower"),
    ]
    rows: list[list[Any]] = []
    for name in _present(run):
        units = run.of_condition(name)
        loss = float(np.mean([unit.final_loss for unit in units]))
        seconds = float(np.mean([unit.seconds for unit in units]))
        rows.append([LOOKS[name].name, run.summaries[name], loss, seconds])
    text = "Loss in nats per answer, seconds of processor time, both of the training."
    return Table("Trainings", columns, rows, text)


def _entropies(run: schemas.TrainNormalisers, result: Result) -> Chart:
    """Draw the mean entropy of all heads at the questions, while the models were trained."""
    place = run.statistics.index("entropy")
    lines = []
    for name in _present(run):
        arrays = [
            np.nanmean(result.arrays[f"{name}-{row.seed}"][..., place], axis=(1, 2))
            for row in run.of_condition(name)
            if f"{name}-{row.seed}" in result.arrays
        ]
        if arrays:
            values = np.mean(arrays, axis=0).astype(float).tolist()
            lines.append(Line.of(LOOKS[name], run.sampled_steps, values, marks=0))
    y = Axis("mean entropy of the heads, nats", digits=2, unit="nats", low=0)
    return Chart("Entropy at the questions while training", Axis("step", noun="steps"), y, lines)
