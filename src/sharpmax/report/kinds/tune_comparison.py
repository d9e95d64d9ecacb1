"""The comparison of tuning with everything else: what it gains, what it costs, which heads."""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import Axis, Block, Cell, Chart, Column, Content, Line, Table, Verdict
from sharpmax.report.kinds._shared import model_facts
from sharpmax.report.numbers import ABSENT, join, p_value, percent, plural, points, share
from sharpmax.report.palette import looks
from sharpmax.results import Result, schemas

PLAIN, TUNED, LORA = "plain", "tune-1", "lora-8"
SEEDS = ("tune-1", "tune-2", "tune-3")

LOOKS = looks(
    ("plain", "tune-1", "lora-8", "lora-1", "calibrate", "log-length:128", "paper"),
)
"""The conditions that the chart shows; tables have all."""

NAMES = {
    "tune-1": "tune, seed 1",
    "tune-2": "tune, seed 2",
    "tune-3": "tune, seed 3",
    "tune-32-heads": "tune, 32 heads",
    "tune-lookup": "tune on lookup only",
    "law-power": "tune, power law",
    "law-offset": "tune, rate and offset",
    "from-64": "tune from 64 tokens",
    "from-256": "tune from 256 tokens",
}
SHOWN_LENGTH = 64
"""The number of names that the sentences are about, if it was measured."""
TERMINAL_LENGTHS = (32, 64, 128)
"""A terminal has room for a few columns."""
SHOWN_HEADS = 12


def describe(result: Result) -> Content:
    comparison = schemas.TuneComparison.of(result)
    questions = max((row.questions for row in comparison.rows if not row.pooled), default=0)
    return Content(
        what="comparison of tuning with everything else",
        title=comparison.model,
        facts=[
            *model_facts(comparison),
            f"{comparison.steps} steps per training",
            f"up to {questions:,} questions per task and length",
            f"seed {comparison.seed}",
        ],
        sentences=[
            *_gain(comparison),
            *_transfer(comparison),
            *_cost(comparison),
            *_short(comparison),
            *_heads(comparison),
        ],
        verdict=_verdict(comparison),
        blocks=_blocks(comparison),
        notes=comparison.notes,
        picture=_charts(comparison),
    )


def _name(condition: str) -> str:
    return NAMES.get(condition) or (LOOKS[condition].name if condition in LOOKS else condition)


# Sentences.


def _lookup_lengths(comparison: schemas.TuneComparison) -> list[int]:
    return sorted({row.length for row in comparison.rows if row.group == "lookup"})


def _shown_length(comparison: schemas.TuneComparison) -> int:
    lengths = _lookup_lengths(comparison)
    return SHOWN_LENGTH if SHOWN_LENGTH in lengths else lengths[len(lengths) // 2]


def _accuracies(comparison: schemas.TuneComparison, cell: str) -> dict[str, float]:
    """Return shares of right answers by condition; `tune` is the mean over seeds."""
    rows = {row.condition: row.accuracy.mean for row in comparison.rows if row.cell == cell}
    seeds = [rows[seed] for seed in SEEDS if seed in rows]
    return rows | ({"tune": sum(seeds) / len(seeds)} if seeds else {})


def _gain(comparison: schemas.TuneComparison) -> list[str]:
    length = _shown_length(comparison)
    cell = f"lookup-{length}"
    right = _accuracies(comparison, cell)
    if "plain" not in right:
        return ["The plain model has not been measured yet."]
    text = f"Asked for one of {length} names, the plain model answers {share(right['plain'])} %"
    if "tune" not in right:
        return [f"{text} correctly. Tuning is not finished yet."]
    text += f" correctly and the tuned one {share(right['tune'])} %"
    seeds = [right[seed] for seed in SEEDS if seed in right]
    if len(seeds) > 1:
        text += f" (mean of {len(seeds)} seeds: {share(min(seeds))} to {share(max(seeds))} %)"
    sentences = [f"{text}."]
    others = [name for name in ("lora-8", "lora-1", "calibrate") if name in right]
    if others:
        listed = join([f"{share(right[name])} % with {_name(name)}" for name in others])
        sentences.append(f"Of the same questions, {listed} are answered correctly.")
    harmful = []
    for name in ("paper", "log-length:128"):
        row = comparison.row(cell, name)
        if row is not None and row.compared is not None and _is_clear(row.compared, -1):
            harmful.append(_name(name))
    if harmful:
        sentences.append(
            f"Sharpening all heads alike does harm: fewer answers are right with {join(harmful)}."
        )
    return sentences


def _is_clear(change: schemas.Change, sign: int) -> bool:
    """Return whether a change in this direction is significant."""
    return change.difference * sign > 0 and change.p_adjusted < 0.05


def _transfer(comparison: schemas.TuneComparison) -> list[str]:
    lengths = sorted({row.length for row in comparison.rows if row.pooled})
    if not lengths:
        return []
    right = _accuracies(comparison, f"held-out-{lengths[-1]}")
    listed = [
        f"{share(right[name])} % with {label}"
        for name, label in (("tune", "tune"), ("tune-lookup", "tune on lookup only"))
        if name in right
    ] + [f"{share(right[name])} % with {_name(name)}" for name in ("lora-8",) if name in right]
    if "plain" not in right or not listed:
        return []
    return [
        f"In formats that were not tuned on, with {lengths[-1]} names, the plain model answers "
        f"{share(right['plain'])} % correctly, against {join(listed)}."
    ]


def _cost(comparison: schemas.TuneComparison) -> list[str]:
    listed = []
    for condition in (TUNED, "lora-8", "lora-1", "calibrate"):
        row = comparison.text("essays", condition)
        if row is not None and row.nats_change is not None:
            change = 100 * row.nats_change.difference
            listed.append(f"{change:+.2f} % with {_name(condition)}")
    if not listed:
        return []
    return [
        "On essays that no condition has seen, nats per token change by "
        f"{join(listed)} (lower is better)."
    ]


def _short(comparison: schemas.TuneComparison) -> list[str]:
    """Say what happens to inputs that are too short for rates to act."""
    rows = [row for row in comparison.rows if row.group == "choices"]
    right = {row.condition: row for row in rows}
    sentences = []
    if TUNED in right and right[TUNED].identical is not None:
        sentences.append(
            f"On HellaSwag, whose items are mostly shorter than 128 tokens, the tuned model gives "
            f"the same bits as the plain one in {percent(right[TUNED].identical or 0.0, 0)} of "
            "items."
        )
    if LORA in right and PLAIN in right:
        sentences.append(
            f"LoRA acts at every length: {_name(LORA)} answers {share(right[LORA].accuracy.mean)} "
            f"% of HellaSwag correctly, the plain model {share(right[PLAIN].accuracy.mean)} %."
        )
    return sentences


def _heads(comparison: schemas.TuneComparison) -> list[str]:
    heads = comparison.heads
    if heads is None:
        return []
    sentences = []
    agreements = [value for value in heads.between_seeds.values() if value is not None]
    if agreements:
        agree = "agree" if min(agreements) >= 0.5 else "agree only in part"
        sentences.append(
            f"Seeds {agree} on which heads to change: the rank correlation of their rates is "
            f"{min(agreements):.2f} to {max(agreements):.2f}."
        )
    if heads.size_with_score is not None and heads.retrieval_size is not None:
        sentences.append(
            f"The {plural(heads.retrieval_heads, 'head')} that find the answer in short prompts "
            f"have rates of {heads.retrieval_size:.2f} on average, regardless of sign, the others "
            f"{heads.other_size or 0.0:.2f} (rank correlation of size and retrieval score "
            f"{heads.size_with_score:.2f})."
        )
    return sentences


def _verdict(comparison: schemas.TuneComparison) -> Verdict:
    rows = [
        row
        for row in comparison.rows
        if row.condition == LORA and row.tuned_compared and not row.pooled
    ]
    if not rows:
        return Verdict(
            "neutral",
            f"Tuning was not compared with {_name(LORA)} here.",
            command="sharpmax reproduce tune-comparison",
        )
    changes = [row.tuned_compared for row in rows if row.tuned_compared]
    better, worse = (sum(_is_clear(change, sign) for change in changes) for sign in (1, -1))
    sentence = (
        f"Against {_name(LORA)}, tuning is clearly better in {better} of {len(rows)} cells and "
        f"clearly worse in {worse}."
    )
    status = "good" if better > worse else "bad" if worse > better else "mixed"
    details = ["Tuning leaves inputs of up to 128 tokens as they are, bit for bit; LoRA does not."]
    return Verdict(status, sentence, details, command="sharpmax tune MODEL")  # type: ignore[arg-type]


# Charts and tables.


def _charts(comparison: schemas.TuneComparison) -> list[Block]:
    charts: list[Block] = []
    for group, title in (
        ("lookup", "Looking up a code"),
        ("held-out", "The same in formats that were not tuned on"),
    ):
        rows = [row for row in comparison.rows if row.group == group]
        rows = [row for row in rows if row.pooled or group == "lookup"]
        lines = []
        for condition, look in LOOKS.items():
            own = sorted(
                (row for row in rows if row.condition == condition), key=lambda row: row.length
            )
            if own:
                ends = {
                    end: [100 * getattr(row.accuracy, end) for row in own]
                    for end in ("low", "high")
                }
                mean = [100 * row.accuracy.mean for row in own]
                x = [row.length for row in own]
                lines.append(Line.of(look, x, mean, **ends, spread="bars"))
        if lines:
            ticks = sorted({row.length for row in rows})
            charts.append(
                Chart(
                    title,
                    Axis("names", scale="log", noun="names", ticks=ticks),
                    Axis("correct answers, %", digits=1, unit="%", low=0, high=104),
                    lines,
                    text="Bars: 95 % intervals. Tuning is that of seed 1.",
                )
            )
    return charts


def _blocks(comparison: schemas.TuneComparison) -> list[Block]:
    blocks = [*_charts(comparison), _accuracy_table(comparison), _cost_table(comparison)]
    if comparison.heads is not None:
        blocks.append(_head_table(comparison.heads))
    return [*blocks, _full_table(comparison)]


def _interval(row: schemas.ComparisonRow | None) -> Cell:
    if row is None:
        return Cell(None, ABSENT)
    mean, low, high = (
        100 * value for value in (row.accuracy.mean, row.accuracy.low, row.accuracy.high)
    )
    return Cell(mean, f"{mean:.0f} ({low:.0f}–{high:.0f})")  # noqa: RUF001 - a range


def _accuracy_table(comparison: schemas.TuneComparison) -> Table:
    pools = sorted({row.length for row in comparison.rows if row.pooled})
    passkeys = sorted({row.length for row in comparison.rows if row.group == "passkey"})
    cells = [
        *(
            (f"lookup-{n}", f"{n} names", f"{n} names" if n in TERMINAL_LENGTHS else "")
            for n in _lookup_lengths(comparison)
        ),
        *(
            (f"held-out-{n}", f"other formats, {n}", f"other, {n}" if n == pools[-1] else "")
            for n in pools
        ),
        *((f"passkey-{n}", f"passkey, {n:,} tokens", "") for n in passkeys),
    ]
    columns = [Column("Condition")]
    columns += [Column(title, 0, "higher", short=short) for _, title, short in cells]
    return Table(
        "Correct answers, %",
        columns,
        [
            [_name(name), *(_interval(comparison.row(cell, name)) for cell, _, _ in cells)]
            for name in comparison.finished
        ],
        "In brackets: 95 % intervals. All conditions answer the same questions. Other formats: "
        "five formats of lookup that were not tuned on.",
    )


def _cost_table(comparison: schemas.TuneComparison) -> Table:
    columns = [
        Column("Condition"),
        Column("Numbers learned", 0, short="learned"),
        Column("Minutes", 1, "lower"),
        Column("Essays, nats %", 2, "lower", short="essays"),
        Column("Guard text, nats %", 2, "lower", short="guard"),
        Column("First 128 tokens, nats %", 2, "lower", short="short"),
        Column("8 names, %", 1, "higher", short="8"),
        Column("HellaSwag, %", 1, "higher", short="hella"),
    ]
    rows = []
    for name, condition in comparison.finished.items():
        essays, guard = (comparison.text(cell, name) for cell in ("essays", "guard"))
        seconds = condition.seconds
        short = next(
            (row for row in comparison.rows if (row.group, row.condition) == ("short", name)), None
        )
        choices = comparison.row("hellaswag", name)
        rows.append(
            [
                _name(name) + (" (nothing gained)" if condition.failure else ""),
                condition.numbers,
                None if seconds is None else seconds / 60,
                _change(essays.nats_change if essays else None),
                _change(guard.nats_change if guard else None),
                _change(essays.short_nats_change if essays else None),
                None if short is None else 100 * short.accuracy.mean,
                None if choices is None else 100 * choices.accuracy.mean,
            ]
        )
    return Table(
        "What it costs",
        columns,
        rows,
        "Nats: change per token of ordinary text against the plain model, after the first 128 "
        "tokens and among them. Minutes: one training; LoRA was trained at several learning rates, "
        "of which validation chose one. Short inputs: lookup among 8 names and HellaSwag.",
    )


def _change(change: schemas.Change | None) -> Any:
    return None if change is None else 100 * change.difference


def _head_table(heads: schemas.TunedHeads) -> Table:
    names = list(heads.rows[0].rates) if heads.rows else []
    columns = [
        Column("Layer", 0),
        Column("Head", 0),
        *(Column(f"Rate, {_name(name)}", 2, short=name) for name in names),
        Column("Retrieval score", 2, short="score"),
        Column(f"Entropy at {heads.lengths[0]} names", 2, short="short"),
        Column(f"Entropy at {heads.lengths[1]} names", 2, short="long"),
    ]

    def size(head: schemas.TunedHead) -> float:
        return -abs(sum(head.rates.values()))

    return Table(
        "The heads with the largest rates",
        columns,
        [
            [
                head.layer,
                head.head,
                *head.rates.values(),
                head.score,
                head.short_entropy,
                head.long_entropy,
            ]
            for head in sorted(heads.rows, key=size)[:SHOWN_HEADS]
        ],
        "By the mean over seeds. Retrieval score: share of short prompts in which the head gives "
        "the token to copy its largest weight. Entropy in nats, where the answer begins, in the "
        "plain model.",
    )


def _full_table(comparison: schemas.TuneComparison) -> Table:
    columns = [
        Column("Task"),
        Column("Length", 0),
        Column("Condition"),
        Column("Questions", 0),
        Column("Correct %", 1, "higher"),
        Column("Change", 1),
        Column("95 % of the change"),
        Column("p", 3),
        Column("Tune is better by", 1),
        Column("p of that", 3),
        Column("log p", 2, "higher"),
    ]
    rows = []
    for row in comparison.rows:
        cells: list[Any] = [
            row.task if not row.pooled else "other formats",
            row.length or None,
            _name(row.condition),
            row.questions,
            100 * row.accuracy.mean,
        ]
        change = row.compared
        cells += (
            [None, "", None]
            if change is None
            else [
                Cell(change.difference, points(change.difference)),
                f"{points(change.low)} to {points(change.high)}",
                Cell(change.p_adjusted, p_value(change.p_adjusted)),
            ]
        )
        tuned = row.tuned_compared
        cells += (
            [None, None]
            if tuned is None
            else [
                Cell(tuned.difference, points(tuned.difference)),
                Cell(tuned.p_adjusted, p_value(tuned.p_adjusted)),
            ]
        )
        rows.append([*cells, row.log_probability])
    return Table(
        "All numbers",
        columns,
        rows,
        "Changes are against the plain model, on the same questions, in percentage points. Tune is "
        "better by: seed 1 against this condition. p: exact sign-flip test over texts, corrected "
        "by Holm's method over all rows. log p: of the correct answer, in nats; of the choices for "
        "HellaSwag.",
        terminal=False,
    )
