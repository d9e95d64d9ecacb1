"""Benchmarks: time and memory, as ratios to what you would use instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sharpmax.report.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Content,
    Group,
    Line,
    Rule,
    Table,
    Verdict,
)
from sharpmax.report.numbers import fixed, join, plural
from sharpmax.report.palette import looks
from sharpmax.results import Result, schemas

PARTS = {
    "prefill": "Time over whole inputs",
    "decode": "Time per generated token",
    "growth": "Time as the input grows",
    "torch_after": "Time of other code right after a call",
    "memory": "Memory, MB",
    "first_call": "First call of a process, seconds",
}
CHEAP = 1.25
"""Ratio to a plain forward pass below which a scan counts as cheap."""
CHEAP_STATISTICS = 0.02
"""Share of a training below which statistics count as cheap."""
LIBRARIES = {"bench-torch": "PyTorch", "bench-jax": "JAX"}
OTHER_MACHINES = "Ratios differ between machines: measure on yours."
NAMES = {"cpu": "adaptive, cpu", "ours": "adaptive", "fused": "fused (two calls)"}
"""Implementations whose name in the file says too little."""


def describe_attention(result: Result) -> Content:
    """Describe a benchmark of attention for PyTorch or JAX."""
    bench = schemas.AttentionBench.of(result)
    sizes = join(list(map(str, bench.dims or [bench.dim or 0])))
    rounds = bench.rounds
    repeats = (
        plural(rounds, "round")
        if isinstance(rounds, int)
        else f"{min(rounds.values())} to {max(rounds.values())} rounds"
    )
    parts = {part: getattr(bench, part) for part in PARTS}
    return Content(
        what="benchmark",
        title=f"Attention for {LIBRARIES[result.kind]}: time and memory",
        facts=[f"{plural(bench.heads, 'head')} of {sizes} channels", repeats],
        sentences=[_ranges(bench.prefill)],
        verdict=_attention_verdict(bench.prefill),
        blocks=[
            _growth(bench.prefill),
            *(_table(title, parts[part]) for part, title in PARTS.items() if parts[part]),
        ],
    )


def _attention_verdict(prefill: Mapping[str, Mapping[str, schemas.Timing]]) -> Verdict:
    baseline, implementation = list(next(iter(prefill.values())))[:2]
    sentence = (
        f"Over whole inputs, {NAMES.get(implementation, implementation)} takes "
        f"{ratio_range(prefill, implementation)} times as long as {baseline} on this machine."
    )
    return Verdict("neutral", sentence, [OTHER_MACHINES], command="make bench")


def ratio_range(rows: Mapping[str, Mapping[str, schemas.Timing]], implementation: str) -> str:
    """Return the smallest and the largest ratio of an implementation: 1.01 to 1.25."""
    ratios = [row[implementation].ratio for row in rows.values() if implementation in row]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _ranges(prefill: Mapping[str, Mapping[str, schemas.Timing]]) -> str:
    baseline, *others = next(iter(prefill.values()))
    ranges = "; ".join(f"{name} {ratio_range(prefill, name)}" for name in others)
    return f"Time over whole inputs, as a ratio to {baseline} (lower is better): {ranges}."


def _growth(prefill: Mapping[str, Mapping[str, schemas.Timing]]) -> Group:
    """Draw the ratios against the number of tokens, one chart per case."""
    cases: dict[str, dict[int, Mapping[str, schemas.Timing]]] = {}
    for name, row in prefill.items():
        tokens, _, case = name.partition(" tokens")
        case = case.removeprefix(", ")
        if "causal" not in case:
            case = f"{case}, every key visible" if case else "every key visible"
        cases.setdefault(case, {})[int(tokens.replace(",", ""))] = row
    baseline, *others = next(iter(prefill.values()))
    look = looks(others)
    charts = []
    for case, rows in cases.items():
        lines = []
        for name in others:
            times = {tokens: row[name] for tokens, row in rows.items() if name in row}
            ratio, low, high = (
                [getattr(time, end) for time in times.values()] for end in ("ratio", "low", "high")
            )
            label = replace(look[name], name=NAMES.get(name, name))
            lines.append(Line.of(label, list(times), ratio, low=low, high=high))
        x = Axis("tokens", scale="log", noun="tokens", ticks=list(rows))
        y = Axis(f"time, {baseline} = 1", scale="log", digits=2)
        title = case[:1].upper() + case[1:]
        charts.append(Chart(title, x, y, lines, [Rule("y", 1, baseline)]))
    text = "Median ratio in the same round; band: quartiles. Lower is better."
    return Group("Time as the input grows", charts, text)


def _table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    timed = isinstance(next(iter(next(iter(rows.values())).values())), schemas.Timing)
    columns = [Column("Case")]
    for name in names:
        whole = (
            all(float(row.get(name, 0)).is_integer() for row in rows.values())
            if not timed
            else False
        )
        columns.append(Column(name, 0 if whole else 2))
    cells = [
        [
            f"{int(case):,} tokens" if case.isdecimal() else case,
            *(_cell(row.get(name)) for name in names),
        ]
        for case, row in rows.items()
    ]
    text = "Ratio of times (quartiles), and milliseconds." if timed else ""
    return Table(title, columns, cells, f"{text} Lower is better.".strip(), terminal=not timed)


def _cell(value: Any) -> Any:
    if not isinstance(value, schemas.Timing):
        return value
    text = f"{value.ratio:.2f} ({value.low:.2f} to {value.high:.2f})"
    return Cell(value.ratio, f"{text}, {fixed(value.milliseconds, 1)} ms")


def describe_scan(result: Result) -> Content:
    """Describe what a scan costs, against a plain forward pass of the model."""
    bench = schemas.ScanBench.of(result)
    columns = [
        Column("Tokens", 0),
        Column("Plain pass, s", 2),
        Column("Scan, s", 2),
        Column("Ratio", 2, "lower"),
        Column("Rounds", 0),
        Column("Peak memory, GB", 2, "lower"),
    ]
    rows = []
    for row in bench.rows:
        times = [row.plain_seconds, row.scan_seconds, row.ratio]
        rows.append([row.tokens, *times, row.rounds, row.peak_gigabytes])
    largest = max(bench.rows, key=lambda row: row.tokens)
    return Content(
        what="benchmark",
        title=f"What a scan costs: {bench.model}",
        facts=[plural(bench.threads, "thread")],
        sentences=[
            f"A scan takes {largest.ratio:.2f} times as long as a plain forward pass at "
            f"{largest.tokens:,} tokens.",
            "Its statistics differ from those of whole matrices by at most "
            f"{bench.largest_difference:.1g}, at {bench.checked_tokens:,} tokens.",
        ],
        verdict=Verdict(
            "good" if largest.ratio < CHEAP else "neutral",
            f"A scan costs {largest.ratio:.2f} times as much as a plain forward pass.",
            [OTHER_MACHINES],
            command="sharpmax scan MODEL",
        ),
        blocks=[Table("By length", columns, rows)],
    )


def describe_long(result: Result) -> Content:
    """Describe what long inputs cost: time of a scan, and memory."""
    bench = schemas.LongBench.of(result)
    growth = join(
        [
            f"{gigabytes:.3f} GB for {job}"
            for job, gigabytes in bench.gigabytes_per_thousand_tokens.items()
        ]
    )
    largest = max(bench.rows, key=lambda row: row.tokens)
    return Content(
        what="benchmark",
        title="What long inputs cost",
        facts=[bench.model, plural(bench.threads, "thread")],
        sentences=[
            f"At {largest.tokens:,} tokens a scan takes {largest.ratio:.2f} times as long as a "
            f"plain forward pass, and its process holds {largest.peak_gigabytes['scan']:.2f} GB.",
            f"Per thousand tokens, memory grows by {growth}. With the model alone it is "
            f"{bench.idle_gigabytes:.2f} GB.",
            f"Contexts are read {bench.chunk:,} tokens at a time, which changes an answer's "
            f"log-probability by {bench.largest_difference:.1g} nats at {bench.checked_tokens:,} "
            "tokens.",
        ],
        verdict=Verdict(
            "good" if largest.ratio < CHEAP else "neutral",
            f"A scan of {largest.tokens:,} tokens needs "
            f"{largest.peak_gigabytes['scan']:.2f} GB and {largest.ratio:.2f} times the time of a "
            "plain forward pass.",
            [OTHER_MACHINES],
            command="sharpmax scan MODEL",
        ),
        blocks=_long_tables(bench),
    )


def _long_tables(bench: schemas.LongBench) -> list[Block]:
    jobs = list(bench.gigabytes_per_thousand_tokens)
    times = Table(
        "Time by length",
        [
            Column("Tokens", 0),
            Column("Plain pass, s", 2),
            Column("Scan, s", 2),
            Column("Ratio", 2, "lower"),
            Column("Rounds", 0),
        ],
        [
            [row.tokens, row.plain_seconds, row.scan_seconds, row.ratio, row.rounds]
            for row in bench.rows
        ],
    )
    memory = Table(
        "Peak memory by length",
        [
            Column("Tokens", 0),
            *(Column(f"{job.capitalize()}, GB", 2, "lower") for job in jobs),
            Column("Keys and values, GB", 2),
        ],
        [
            [row.tokens, *(row.peak_gigabytes[job] for job in jobs), row.cache_gigabytes]
            for row in bench.rows
        ],
        "All that a process holds. The last column is the part that keys and values need.",
    )
    return [times, memory]


def describe_generate(result: Result) -> Content:
    """Describe what a calibration costs while a model generates."""
    bench = schemas.GenerateBench.of(result)
    columns = [
        Column("Prompt, tokens", 0),
        Column("Plain, s", 2),
        Column("Calibrated, s", 2),
        Column("Ratio", 2, "lower"),
        Column("Rounds", 0),
    ]
    rows: list[list[Any]] = []
    ratios: list[str] = []
    for tokens, times in bench.times.items():
        plain, calibrated = times["plain"], times["calibrated"]
        text = f"{calibrated.ratio:.2f} ({calibrated.low:.2f} to {calibrated.high:.2f})"
        seconds = [plain.milliseconds / 1000, calibrated.milliseconds / 1000]
        rows.append([int(tokens), *seconds, Cell(calibrated.ratio, text), bench.rounds[tokens]])
        ratios.append(f"{calibrated.ratio:.2f} after {int(tokens):,} tokens")
    return Content(
        what="benchmark",
        title=f"What a calibration costs while generating: {bench.model}",
        facts=[plural(bench.new_tokens, "new token"), plural(bench.threads, "thread")],
        sentences=[
            f"Time with the calibration as a ratio to the plain model: {join(ratios)}.",
            f"Up to {bench.from_tokens:,} tokens the logits are the same bit for bit.",
        ],
        verdict=Verdict(
            "neutral",
            "At the longest prompt, generating with the calibration takes "
            f"{ratios[-1].partition(' ')[0]} times as long as without.",
            [OTHER_MACHINES],
            command="sharpmax export MODEL --calibration tuned.json",
        ),
        blocks=[Table("By the length of the prompt", columns, rows)],
    )


def describe_training(result: Result) -> Content:
    """Describe what attention statistics and QK-clip cost in a training."""
    bench = schemas.TrainingBench.of(result)
    names = {"plain": "plain", "sampled": "with statistics", "clipped": "with QK-clip"}
    columns = [Column("Step"), Column("Seconds", 2, "lower"), Column("Ratio", 3, "lower")]
    rows: list[list[Any]] = [
        [
            names[name],
            time.milliseconds / 1000,
            Cell(time.ratio, f"{time.ratio:.2f} ({time.low:.2f} to {time.high:.2f})"),
        ]
        for name, time in bench.times.items()
    ]
    cost = bench.callback
    return Content(
        what="benchmark",
        title=f"What attention statistics cost in a training: {bench.model}",
        facts=[
            f"{plural(bench.batch, 'text')} of {plural(bench.tokens, 'token')}",
            plural(bench.rounds, "round"),
            plural(bench.threads, "thread"),
        ],
        sentences=[
            f"Every {bench.every}th step is sampled: {bench.rows} rows of {bench.sequences} "
            "sequences.",
            "Gradients are the same bit for bit.",
        ],
        verdict=Verdict(
            "good" if cost.ratio <= CHEAP_STATISTICS else "mixed",
            f"The statistics callback costs {100 * cost.ratio:.1f} % of the training "
            f"({100 * cost.low:.1f} to {100 * cost.high:.1f}).",
            [OTHER_MACHINES],
        ),
        blocks=[Table("A training step", columns, rows)],
    )


def describe_max_retrieval(result: Result) -> Content:
    """Describe what training and examining a head costs."""
    bench = schemas.HeadBench.of(result)
    training, exam = bench.training, bench.exam
    low, high = training.range
    columns = [Column("Implementation"), Column("Milliseconds", 2, "lower")]
    return Content(
        what="benchmark",
        title="What max retrieval costs",
        facts=[f"batches of {bench.batch}", plural(bench.rounds, "round")],
        sentences=[
            f"A training step is {training.speed_up:.1f} times as fast as the model as written "
            f"({low:.1f} to {high:.1f}).",
            f"An exam of {bench.sets:,} sets of {bench.items:,} items takes {exam.seconds:.1f} s "
            f"and {exam.peak_gigabytes:.2f} GB.",
        ],
        verdict=Verdict(
            "neutral",
            f"A training step takes {1 / training.speed_up:.2f} times as long as the model as "
            "written.",
            [OTHER_MACHINES],
            command="sharpmax reproduce table1",
        ),
        blocks=[Table("A training step", columns, list(training.milliseconds.items()))],
    )
