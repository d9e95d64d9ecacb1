"""A calibration: which heads are worth sharpening, and how much."""

from __future__ import annotations

from sharpmax.report.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Content,
    Heads,
    Line,
    Measure,
    Table,
    Verdict,
)
from sharpmax.report.numbers import join_numbers, plural
from sharpmax.results import Calibration

MEASURES = (
    ("benefit", "Benefit of sharpening", "nats", 3),
    ("rate", "Rate", "per nat of log(tokens)", 3),
    ("short_entropy", "Entropy on short texts", "nats", 2),
    ("long_entropy", "Entropy on long texts", "nats", 2),
)


def describe(calibration: Calibration) -> Content:
    architecture, method = calibration.architecture, calibration.method
    start = calibration.from_tokens
    sentences = [
        f"{heads_worth_sharpening(calibration)}.",
        f"A row that sees n tokens is sharpened by 1 + rate * log(n / {start:,}), at most twofold. "
        f"Up to {start:,} tokens the model answers as before, bit for bit.",
    ]
    helpful = [head for head in calibration.heads if head.benefit is not None]
    if helpful:
        best = max(helpful, key=lambda head: head.benefit or 0)
        sentences.append(
            f"Head {best.head} of layer {best.layer} helps most: the log-probability of the "
            f"correct answer grows by {best.benefit:.2f} nats per nat of log(inverse temperature), "
            f"with a standard error of {best.benefit_error:.2f}."
        )
    return Content(
        what="calibration",
        title=calibration.model,
        facts=[
            architecture.model_type,
            plural(len(architecture.heads), "attention layer"),
            f"sharpmax calibrate, task {method['task']}, chosen by {method['choose']}, seed "
            f"{method['seed']}",
            f"weights {calibration.weights[:12]}",
        ],
        sentences=sentences,
        verdict=_verdict(calibration),
        blocks=[_map(calibration), *_rates(calibration), _table(calibration)]
        if calibration.heads
        else [],
    )


def heads_worth_sharpening(calibration: Calibration) -> str:
    """Say how many heads are worth sharpening, and where they are; without a full stop."""
    task, choice = calibration.method["task"], calibration.method["choose"]
    if not calibration.heads:
        return f"No head is worth sharpening on the task {task} (chosen by {choice})"
    layers = join_numbers(sorted({head.layer for head in calibration.heads}))
    return (
        f"{len(calibration.heads)} of {sum(calibration.architecture.heads):,} heads are worth "
        f"sharpening on the task {task} (chosen by {choice}), in layers {layers}"
    )


def _verdict(calibration: Calibration) -> Verdict:
    if not calibration.heads:
        return Verdict("neutral", "Nothing here asks for sharpening.")
    return Verdict(
        "good",
        "Sharpen these heads while the model does the task that they were chosen on.",
        ["Evaluate the model on other texts than these first. On other tasks it may do harm."],
        command='with sharpmax.hf.sharpen(model, "calibration.json"):\n    ...  # your task',
    )


def _map(calibration: Calibration) -> Heads:
    sizes = calibration.architecture.heads
    widest = max(sizes)
    measures = []
    for key, name, unit, digits in MEASURES:
        values: list[list[float | None]] = [[None] * widest for _ in sizes]
        for head in calibration.heads:
            values[head.layer][head.head] = getattr(head, key)
        if any(value is not None for row in values for value in row):
            measures.append(Measure(key, name, values, digits, unit))
    first = max(calibration.heads, key=lambda head: (head.benefit or 0, head.rate))
    return Heads(
        title="Map of heads",
        layers=[
            {"index": layer, "name": f"attention layer {layer}"} for layer in range(len(sizes))
        ],
        present=[[head < size for head in range(widest)] for size in sizes],
        measures=measures,
        first=(first.layer, first.head),
        without="not sharpened",
    )


def _rates(calibration: Calibration) -> list[Block]:
    tried = calibration.method.get("by_rate")
    if not tried:
        return []
    rates = sorted(tried, key=float)
    before = calibration.method["log_probability_of_long"]
    line = Line("sharpened", [0.0, *map(float, rates)], [before, *(tried[rate] for rate in rates)])
    chart = Chart(
        "The rates that were tried",
        Axis("rate of the chosen heads", digits=2, noun="(rate)"),
        Axis("log p of the correct answer on long texts, nats", digits=3, unit="nats"),
        [line],
    )
    return [chart]


def _table(calibration: Calibration) -> Table:
    answered = any(head.benefit is not None for head in calibration.heads)
    columns = [
        Column("Layer", 0),
        Column("Head", 0),
        Column("Rate", 3),
        Column("Entropy on short texts", 2, short="Entropy, short"),
        Column("Entropy on long texts", 2, short="long"),
    ]
    columns += [Column("Benefit", 3, "higher")] if answered else []
    rows = []
    for head in calibration.heads:
        row = [head.layer, head.head, head.rate, head.short_entropy, head.long_entropy]
        if head.benefit is not None and head.benefit_error is not None:
            benefit = Cell(head.benefit, f"{head.benefit:.3f} ± {head.benefit_error:.3f}")
            row.append(benefit)  # type: ignore[arg-type]
        elif answered:
            row.append(None)  # type: ignore[arg-type]
        rows.append(row)
    text = "Benefit: ± standard error." if answered else ""
    return Table("The heads to sharpen", columns, rows, text)
