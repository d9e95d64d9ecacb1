"""A calibration: how much to sharpen or soften which heads, what it gains and what it costs."""

from __future__ import annotations

from typing import Any, Literal

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
from sharpmax.report.numbers import join, join_numbers, plural, share, span
from sharpmax.results import Calibration

MEASURES = (
    ("benefit", "Benefit of sharpening", "nats", 3),
    ("rate", "Rate", "per nat of log(tokens)", 3),
    ("short_entropy", "Entropy on short texts", "nats", 2),
    ("long_entropy", "Entropy on long texts", "nats", 2),
)


SHOWN_HEADS = 24
"""A tuned calibration may change most heads; the table shows those with the largest rates."""


def describe(calibration: Calibration) -> Content:
    tuned = "choose" not in calibration.method
    parts = _describe_tuned(calibration) if tuned else _describe_chosen(calibration)
    source, sentences, verdict, blocks = parts
    return Content(
        what="calibration",
        title=calibration.model,
        facts=[
            calibration.architecture.model_type,
            plural(len(calibration.architecture.heads), "attention layer"),
            f"{source}, seed {calibration.method['seed']}",
            f"weights {calibration.weights[:12]}",
        ],
        sentences=sentences,
        verdict=verdict,
        blocks=blocks if calibration.heads else [],
    )


def _law(calibration: Calibration) -> str:
    start, law = calibration.from_tokens, calibration.law
    return (
        f"A row that sees n tokens is sharpened by 1 + rate * log(n / {start:,}), kept between "
        f"{law.low:g} and {law.high:g}. Up to {start:,} tokens the model answers as before, bit "
        "for bit."
    )


# Learned by `tune`.


def _describe_tuned(
    calibration: Calibration,
) -> tuple[str, list[str], Verdict, list[Block]]:
    rates = [head.rate for head in calibration.heads]
    softer = sum(rate < 0 for rate in rates)
    sentences = [*tuning_gains(calibration), *_text_cost(calibration)]
    if rates:
        sentences.append(
            f"{len(rates)} of {sum(calibration.architecture.heads):,} heads change as inputs grow: "
            f"{len(rates) - softer} become sharper and {softer} softer, with rates from "
            f"{min(rates):.2f} to {max(rates):.2f}."
        )
    sentences.append(_law(calibration))
    blocks: list[Block] = [_gains(calibration)] if calibration.gains else []
    blocks += [_map(calibration), *_history(calibration), _table(calibration)]
    return "sharpmax tune", sentences, _tuned_verdict(calibration), blocks


def tuning_gains(calibration: Calibration) -> list[str]:
    """Say how many answers are right before and after, on average over tasks."""
    sentences = []
    for tuned_on, which in ((True, "it was tuned on"), (False, "it was not tuned on")):
        gains = [gain for gain in calibration.gains if gain.tuned_on == tuned_on]
        if gains:
            before = sum(gain.right_before for gain in gains) / len(gains)
            after = sum(gain.right_after for gain in gains) / len(gains)
            tasks = f"{plural(len(gains), 'task')} that {which}"
            sentences.append(
                f"On fresh prompts of {tasks}, the model answers {share(before)} % correctly "
                f"without and {share(after)} % with the calibration."
            )
    return sentences


def _text_cost(calibration: Calibration) -> list[str]:
    cost = calibration.text_cost
    if cost is None:
        return []
    return [
        f"Ordinary text costs {100 * cost.relative:+.2f} % nats per token "
        f"({cost.nats_before:.3f} → {cost.nats_after:.3f}, {cost.tokens:,} tokens; lower is "
        "better)."
    ]


def _tuned_verdict(calibration: Calibration) -> Verdict:
    if not calibration.gains:
        return Verdict(
            "neutral",
            "Evaluate this calibration: its gain was not measured.",
            command="sharpmax evaluate MODEL --policy tuned.json",
        )
    gains = [gain.right_after - gain.right_before for gain in calibration.gains]
    losers = [gain.task for gain in calibration.gains if gain.right_after < gain.right_before]
    details = [f"Fewer answers are right on {join(losers)}."] if losers else []
    details.append("Evaluate it on your own task before you use it: the questions here are few.")
    better = sum(gains) > 0
    return Verdict(
        "good" if better and not losers else "mixed" if better else "bad",
        "Sharpening the model with this file gives more right answers."
        if better
        else "Leave the model as it is: the calibration does not help on fresh prompts.",
        details,
        command="sharpmax evaluate MODEL --policy tuned.json\n"
        "sharpmax export MODEL --calibration tuned.json  # once it has helped on your task"
        if better
        else "sharpmax diagnose MODEL",
    )


def _gains(calibration: Calibration) -> Table:
    columns = [
        Column("Task"),
        Column("Tuned on"),
        Column("Length"),
        Column("Tokens", 0),
        Column("Correct before, %", 1, short="Before, %"),
        Column("Correct after, %", 1, "higher", short="After, %"),
        Column("Log p before", 2, short=""),
        Column("Log p after", 2, "higher", short=""),
    ]
    rows = [
        [
            gain.task,
            "yes" if gain.tuned_on else "no",
            f"{gain.length:,} {gain.unit}",
            gain.tokens,
            100 * gain.right_before,
            100 * gain.right_after,
            gain.nats_before,
            gain.nats_after,
        ]
        for gain in calibration.gains
    ]
    questions = sorted({gain.questions for gain in calibration.gains})
    text = f"{span(questions)} questions per task. Log p: of the correct answer, in nats."
    return Table("Answers before and after, on fresh prompts", columns, rows, text)


def _history(calibration: Calibration) -> list[Block]:
    rows = calibration.method.get("history", ())
    if len(rows) < 2:
        return []
    steps, nats, divergence = (list(column) for column in zip(*rows, strict=True))
    steps_axis = Axis("step", digits=0, noun="steps")
    return [
        Chart(
            "Answers while tuning",
            steps_axis,
            Axis("-log p per token of an answer, nats", digits=3, unit="nats", low=0),
            [Line("validation prompts", steps, nats)],
            text="Lower is better.",
        ),
        Chart(
            "Ordinary text while tuning",
            steps_axis,
            Axis("KL(plain || tuned) per token, nats", digits=4, unit="nats", low=0),
            [Line("validation text", steps, divergence)],
            text="0 is the plain model.",
        ),
    ]


# Chosen by `calibrate`.


def _describe_chosen(
    calibration: Calibration,
) -> tuple[str, list[str], Verdict, list[Block]]:
    method = calibration.method
    sentences = [f"{chosen_heads(calibration)}.", _law(calibration)]
    helpful = [head for head in calibration.heads if head.benefit is not None]
    if helpful:
        best = max(helpful, key=lambda head: head.benefit or 0)
        sentences.append(
            f"Head {best.head} of layer {best.layer} helps most: the log-probability of the "
            f"correct answer grows by {best.benefit:.2f} nats per nat of log(inverse temperature), "
            f"with a standard error of {best.benefit_error:.2f}."
        )
    source = f"sharpmax calibrate, task {method['task']}, chosen by {method['choose']}"
    blocks: list[Block] = []
    if calibration.heads:
        blocks = [_map(calibration), *_rates(calibration), _table(calibration)]
    return source, sentences, _verdict(calibration), blocks


def chosen_heads(calibration: Calibration) -> str:
    """Say how many heads were chosen, and where they are; without a full stop."""
    task, choice = calibration.method["task"], calibration.method["choose"]
    if not calibration.heads:
        return f"No head was chosen on the task {task} (by {choice})"
    layers = join_numbers(sorted({head.layer for head in calibration.heads}))
    total = sum(calibration.architecture.heads)
    return (
        f"{len(calibration.heads)} of {plural(total, 'head')} were chosen on the task {task} (by "
        f"{choice}), in layers {layers}"
    )


def _verdict(calibration: Calibration) -> Verdict:
    if not calibration.heads:
        return Verdict("neutral", "Leave the model as it is.", command="sharpmax tune MODEL")
    if calibration.method["choose"] == "entropy":
        return Verdict(
            "neutral",
            "These heads lose focus on long texts. Whether sharpening them helps was not measured.",
            [
                "Entropy alone does not say which heads to sharpen. On SmolLM2, sharpening the "
                "heads that were chosen by entropy had no measurable effect on the answers."
            ],
            command="sharpmax tune MODEL",
        )
    return Verdict(
        "mixed",
        "Sharpening these heads should help on the task that they were chosen on: evaluate it.",
        [
            "They were chosen by their effect on answers to other questions of that task. On other "
            "tasks sharpening them may do harm."
        ],
        command="sharpmax evaluate MODEL --policy calibration.json",
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
            signed = any(value is not None and value < 0 for row in values for value in row)
            scale: Literal["signed", "linear"] = "signed" if signed else "linear"
            measures.append(Measure(key, name, values, digits, unit, scale))
    first = max(calibration.heads, key=lambda head: (head.benefit or 0, abs(head.rate)))
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
    measured = any(head.short_entropy is not None for head in calibration.heads)
    columns = [Column("Layer", 0), Column("Head", 0), Column("Rate", 3)]
    if measured:
        columns += [
            Column("Entropy on short texts", 2, short="Entropy, short"),
            Column("Entropy on long texts", 2, short="long"),
        ]
    columns += [Column("Benefit", 3, "higher")] if answered else []
    heads = calibration.heads
    if len(heads) > SHOWN_HEADS:
        largest = sorted(heads, key=lambda head: -abs(head.rate))[:SHOWN_HEADS]
        heads = tuple(sorted(largest, key=lambda head: (head.layer, head.head)))
    rows: list[list[Any]] = []
    for head in heads:
        row: list[Any] = [head.layer, head.head, head.rate]
        row += [head.short_entropy, head.long_entropy] if measured else []
        if head.benefit is not None and head.benefit_error is not None:
            row.append(Cell(head.benefit, f"{head.benefit:.3f} ± {head.benefit_error:.3f}"))
        elif answered:
            row.append(None)
        rows.append(row)
    text = "Benefit: ± standard error." if answered else ""
    title = "The heads to sharpen" if measured else "The heads that change"
    if len(heads) < len(calibration.heads):
        title = f"The {len(heads)} heads that change most"
    return Table(title, columns, rows, text, terminal=measured)
