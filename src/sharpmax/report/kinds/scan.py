"""A scan: how dispersed is each head of a model, and which heads disperse?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sharpmax.report.blocks import (
    Axis,
    Cell,
    Chart,
    Column,
    Content,
    Heads,
    HeadStatistics,
    Line,
    Measure,
    Table,
    Verdict,
)
from sharpmax.report.kinds._shared import model_facts, policy_words
from sharpmax.report.kinds.laws import LAWS
from sharpmax.report.kinds.scan_view import POSITIONS, STATISTICS, Head, ScanView
from sharpmax.report.kinds.token_view import token_view
from sharpmax.report.numbers import fixed, join, join_numbers, plural, round_all, span
from sharpmax.report.palette import label_colour
from sharpmax.results import Result, schemas

VERBS = {
    "disperses": ("disperses", "disperse"),
    "stays sharp": ("stays sharp", "stay sharp"),
    "uniform": ("is uniform", "are uniform"),
    "sink": ("is a sink", "are sinks"),
    "local": ("is local", "are local"),
    "unknown": ("is unknown", "are unknown"),
}
LETTERS = {"sink": "s", "local": "l", "uniform": "u"}
"""Marks of labels in the picture's map."""

STEEPEST = 8
"""Heads in the table of the steepest."""


def describe(result: Result) -> Content:
    view = ScanView.of(result)
    scan = view.scan
    facts = [*model_facts(scan), f"prompt {scan.prompt}", _lengths(scan), f"seed {scan.seed}"]
    policy = [f"measured with policy {policy_words(scan.policy)}"] if scan.policy else []
    by_length, by_label = _length_table(view), _entropy_by_label(view)
    seconds = zip(scan.seconds, scan.tokens, strict=True)
    each = ", ".join(f"{taken:.3g} s at {tokens:,}" for taken, tokens in seconds)
    return Content(
        what=_what(scan),
        title=scan.model,
        facts=facts + policy,
        sentences=sentences(view),
        verdict=_verdict(view),
        blocks=[_explorer(view), by_label, by_length, _steepest_table(view), *_law_table(view)],
        notes=scan.notes,
        counts=view.counts,
        glossary=_glossary(view),
        picture=[_slope_map(view), by_label],
        took=f"; by tokens: {each}",
    )


def _what(scan: schemas.Scan) -> str:
    """Name the scan, so that those of one model differ in a list."""
    if scan.policy is None:
        return "scan"
    return f"scan of the {'tuned' if scan.policy.startswith('calibration') else 'sharpened'} model"


# What the scan says, in sentences.


def sentences(view: ScanView) -> list[str]:
    """Say what was found, the most important first."""
    found = [label_counts(view), *_where(view), _entropy(view), _steepest_sentence(view)]
    return [*found, *_law_sentence(view)]


def label_counts(view: ScanView) -> str:
    """Say how many heads have each label."""
    parts = []
    for label, count in view.counts.items():
        single, many = VERBS.get(label, (f"is labelled {label}", f"are labelled {label}"))
        parts.append(f"{count or 'none'} {single if count <= 1 else many}")
    text = f"Of {plural(len(view.heads), 'head')}, {join(parts)}."
    if view.counts["local"]:
        text += (
            " A local head sees a sliding window of fixed size, so the theorem about growing "
            "inputs does not apply to it."
        )
    return text


def _where(view: ScanView) -> list[str]:
    """Name the fewest layers that hold half of the dispersing heads."""
    total = len(view.dispersing)
    if not total:
        return []
    counts = Counter(head.layer for head in view.dispersing)
    shown, held = [], 0
    for layer in _layers_by_count(view.dispersing):
        if 2 * held >= total:
            break
        shown.append(layer)
        held += counts[layer]
    subject = (
        f"{held} of the {total} dispersing heads {'is' if held == 1 else 'are'}"
        if held < total
        else ("The one dispersing head is" if total == 1 else f"All {total} dispersing heads are")
    )
    layers = len(view.scan.layers)
    if len(shown) == 1:
        return [f"{subject} in layer {shown[0]}, of {layers} measured."]
    return [f"{subject} in {len(shown)} of the {layers} layers measured: {join_numbers(shown)}."]


def _entropy(view: ScanView) -> str:
    tokens = view.scan.tokens
    short, long = (f"{view.mean('effective_tokens', end):,.1f} tokens" for end in (0, -1))
    text = f"An average head attends to about {short} of a {tokens[0]:,}-token prompt"
    if len(tokens) > 1:
        text += f" and about {long} of a {tokens[-1]:,}-token prompt"
    return f"{text} (exp of the mean entropy)."


def _steepest_sentence(view: ScanView) -> str:
    head = steepest(view.dispersing) or steepest(view.heads)
    if head is None or head.slope is None:
        return "No slope was measured: that takes at least two lengths."
    kind = "dispersing head" if head.label == "disperses" else "head"
    return (
        f"The steepest {kind} is head {head.head} of layer {head.layer}: doubling the prompt makes "
        f"it spread over {2**head.slope:.1f} times as many tokens (slope {head.slope:z.2f}; 0.5 or "
        "more counts as dispersing)."
    )


def _law_sentence(view: ScanView) -> list[str]:
    """Say which law of sharpening would hold the focus of most heads, if it was measured."""
    laws = Counter(head.law for head in view.heads if head.law in LAWS)
    if not laws:
        return []
    law, heads = laws.most_common(1)[0]
    need = "hardly any sharpening" if law == "none" else f"sharpening that grows {LAWS[law]}"
    return [
        f"To stay as focused as at the shortest input, {heads} of {plural(laws.total(), 'head')} "
        f"would need {need}."
    ]


def steepest(heads: Sequence[Head]) -> Head | None:
    """Return the head whose entropy grows fastest; None if no slope was measured."""
    measured = [head for head in heads if head.slope is not None]
    return max(measured, key=lambda head: head.slope or 0.0, default=None)


# What to do.


def _verdict(view: ScanView) -> Verdict:
    details = []
    if view.scan.policy:
        details.append(
            f"These numbers were measured with the policy “{policy_words(view.scan.policy)}”. "
            "Compare them with a scan of the same model without it."
        )
    if len(view.scan.tokens) == 1:
        longer = ",".join(str(factor * view.scan.lengths[0]) for factor in (1, 2, 4))
        return Verdict(
            "neutral",
            "One length does not show how the heads change as inputs grow.",
            details,
            command=f"sharpmax scan MODEL --lengths {longer}",
        )
    warning = "Sharpening every head with the paper's polynomial makes language models worse."
    if not view.dispersing:
        details.append("Longer inputs may show otherwise.")
        longer = ",".join(str(factor * view.scan.lengths[-1]) for factor in (2, 4))
        return Verdict(
            "good",
            "No head disperses over these lengths.",
            [*details, warning],
            command=f"sharpmax scan MODEL --lengths {longer}",
        )
    count = len(view.dispersing)
    details += [
        "That alone does not say which heads to change: a head may be there to average. Diagnose "
        "shows whether answers are lost to it, and tune learns from questions with known answers "
        "how much to sharpen each head.",
        warning,
    ]
    return Verdict(
        "mixed",
        f"{count} of {plural(len(view.heads), 'head')} "
        f"{'loses' if count == 1 else 'lose'} focus as inputs grow.",
        details,
        command="sharpmax diagnose MODEL  # are answers lost because of it?\n"
        "sharpmax tune MODEL      # learn how much to sharpen each head",
    )


def _layers_by_count(heads: Sequence[Head]) -> list[int]:
    """Return the layers of these heads, those with most first."""
    counts = Counter(head.layer for head in heads)
    return sorted(counts, key=lambda layer: (-counts[layer], layer))


# Facts, tables, charts.


def _lengths(scan: schemas.Scan) -> str:
    """Format the tokens, and the lengths that were asked for where these are not tokens."""
    text = f"{span(scan.tokens)} tokens"
    if scan.lengths != scan.tokens:
        text = f"{span(scan.lengths)} {scan.unit} ({text})"
    return text if len(scan.lengths) == 1 else f"{text} in {len(scan.lengths)} lengths"


def _length_table(view: ScanView) -> Table:
    scan = view.scan
    statistics = [one for one in view.statistics if one.short]
    named = scan.lengths != scan.tokens
    columns = [Column(scan.unit.capitalize(), 0)] if named else []
    columns += [Column("Tokens", 0)]
    digits = {"share": 3, "entropy": 2, "count": 1, "free": 1}
    columns += [Column(one.name, digits[one.scale], short=one.short) for one in statistics]
    rows = []
    for index, (length, tokens) in enumerate(zip(scan.lengths, scan.tokens, strict=True)):
        means = [view.mean(one.key, index) for one in statistics]
        rows.append([*([length] if named else []), tokens, *means])
    text = "Effective tokens are exp of the mean entropy, as for one average head."
    return Table("Means over all heads, at the last position", columns, rows, text)


def _steepest_table(view: ScanView) -> Table:
    """List the steepest heads, from the shortest to the longest input."""
    shown = ("entropy", "effective_tokens", "max_weight")
    by_key = {one.key: one for one in STATISTICS}
    columns = [Column("Layer", 0), Column("Head", 0), Column("Slope", 2)]
    columns += [Column(by_key[key].name, 2, short=by_key[key].short) for key in shown]
    columns += [Column("Label")]
    measured = [head for head in view.heads if head.slope is not None]
    heads = sorted(measured, key=lambda head: -(head.slope or 0))[:STEEPEST]
    rows = []
    for head in heads:
        cells = []
        for key in shown:
            digits = {"effective_tokens": 0, "max_weight": 3}.get(key, 2)
            ends = [view.value(key, 0, head), view.value(key, -1, head)]
            cells.append(Cell(round_all(ends[1]), " → ".join(fixed(end, digits) for end in ends)))
        rows.append([head.layer, head.head, head.slope, *cells, head.label])
    return Table("The steepest heads, from the shortest to the longest input", columns, rows)


def _law_table(view: ScanView) -> list[Table]:
    """Count the heads by the law of sharpening that would hold their focus."""
    if not view.scan.laws:
        return []
    power = view.result.arrays["growth_power"]
    columns = [Column("Sharpening grows"), Column("Heads", 0), Column("Power of log n, median", 2)]
    rows: list[list[Any]] = []
    for law, name in {**LAWS, "nothing competes": "not measured"}.items():
        heads = [head for head in view.heads if head.law == law]
        known = [power[head.row, head.column] for head in heads if law in LAWS]
        rows.append([name, len(heads), float(np.median(known)) if known else None])
    text = (
        "What it would take for the tokens near the largest logit not to gain weight on it as the "
        "input grows, from their number within some distances at the last position; the first "
        "token is left out. Not measured: nothing competes, or the head sees a window. That a head "
        "could be held does not say that it should be."
    )
    return [Table("Sharpening that would hold the focus", columns, rows, text)]


def _entropy_by_label(view: ScanView) -> Chart:
    tokens = view.scan.tokens
    entropy = view.result.arrays["last_entropy"]
    lines = []
    for label, count in view.counts.items():
        heads = [head for head in view.heads if head.label == label]
        if heads:
            values = entropy[:, [head.row for head in heads], [head.column for head in heads]]
            low, high = np.nanpercentile(values, [25, 75], axis=1).tolist()
            mean = np.asarray(np.nanmean(values, axis=1, dtype=np.float64)).tolist()
            name, colour = f"{label} ({count})", label_colour(label)
            lines.append(Line(name, tokens, mean, low, high, colour=colour))
    largest = [math.log(count) for count in tokens]
    lines.append(Line("uniform, log n", tokens, largest, colour="ink", dash="dot", marks=0))
    return Chart(
        "Entropy of the heads, by label",
        Axis("tokens of the input", scale="log", noun="tokens", ticks=tokens),
        Axis("entropy at the last position, nats", digits=2, unit="nats", low=0),
        lines,
        text="Mean of the heads with that label; band: the middle half of them.",
    )


def _slope_map(view: ScanView) -> Heads:
    scan = view.scan
    present = [[False] * len(scan.heads) for _ in scan.layers]
    marks = {}
    for head in view.heads:
        present[head.row][head.column] = True
        if head.label in LETTERS:
            marks[head.row, head.column] = LETTERS[head.label]
    first = first_shown(view)
    name = "Slope: growth of entropy, nats per nat of log n"
    return Heads(
        title="Slope of each head",
        layers=[layer.model_dump() for layer in scan.layers],
        present=present,
        measures=[Measure("slope", name, scan.slopes, 2)],
        first=(first.row, first.column),
        without="not measured",
        text="; ".join(f"{letter}: {label}" for label, letter in LETTERS.items()),
        numbers=scan.heads,
        marks=marks,
    )


def first_shown(view: ScanView) -> Head:
    """Return the head that the page opens with: the steepest that disperses, if any does."""
    return steepest(view.dispersing) or steepest(view.heads) or view.heads[0]


def _explorer(view: ScanView) -> HeadStatistics:
    first = first_shown(view)
    columns = [Column("Layer", 0), Column("Head", 0), Column("Label"), Column("Slope", 3)]
    columns += [Column(one.name, one.digits) for one in view.statistics]
    columns += [Column("Visible tokens", 0)]
    rows = []
    for head in view.heads:
        values = [
            view.value(key, -1, head) for key in [*(one.key for one in view.statistics), "count"]
        ]
        row = [head.layer, head.head, head.label, head.slope, *values]
        rows.append([value if isinstance(value, str) else round_all(value) for value in row])
    return HeadStatistics(
        title="Map of heads",
        data=_explorer_data(view),
        table=Table("All heads at the longest input", columns, rows),
        cells=[(head.row, head.column) for head in view.heads],
        tokens=token_view([("", view)], (first.row, first.column)),
    )


def _explorer_data(view: ScanView) -> dict[str, Any]:
    """Return what the page's script draws from."""
    scan, arrays, first = view.scan, view.result.arrays, first_shown(view)
    labels: list[list[str | None]] = [[None for _ in scan.heads] for _ in scan.layers]
    slopes: list[list[float | None]] = [[None for _ in scan.heads] for _ in scan.layers]
    for head in view.heads:
        labels[head.row][head.column] = head.label
        slopes[head.row][head.column] = head.slope
    names = [f"{where}_{one.key}" for where in POSITIONS for one in view.statistics]
    return {
        "layers": [layer.model_dump() for layer in scan.layers],
        "heads": scan.heads,
        "tokens": scan.tokens,
        "labels": labels,
        "slopes": slopes,
        "rules": _rules(view),
        "order": [label for label, count in view.counts.items() if count],
        "first": [first.row, first.column],
        "positions": POSITIONS,
        "statistics": [asdict(one) for one in view.statistics],
        "count": arrays["last_count"].tolist(),
        "values": {name: arrays[name].tolist() for name in names},
    }


def _rules(view: ScanView) -> dict[str, str]:
    """Return when a head gets each label, as sentences."""
    rules = view.scan.rules
    order = [label for label in [*view.counts, *sorted(rules)] if label in rules]
    return {label: f"{rules[label][:1].upper()}{rules[label][1:].rstrip('.')}." for label in order}


def _glossary(view: ScanView) -> dict[str, dict[str, str]]:
    statistics = {}
    for one in view.statistics:
        unit = f", in {one.unit}" if one.unit else ""
        statistics[one.name] = f"{one.formula}{unit}. {one.meaning}"
    statistics["Slope"] = (
        "growth of entropy / growth of log(n), at the last position over the lengths, in nats per "
        "nat. 1: spreads as fast as the input grows; 0: stays sharp."
    )
    statistics["Row"] = (
        "weights p_i = exp(z_i) / (sum over j of exp(z_j)) of the n tokens that are visible from "
        "one position. “At the last position” is the row of the prompt's last token; “averaged "
        "over positions” is the mean of the statistic over all rows."
    )
    return {"What the labels mean": _rules(view), "What the statistics mean": statistics}
