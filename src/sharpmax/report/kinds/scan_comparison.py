"""Two scans of the same inputs: what changed from the first to the second, head by head."""

from __future__ import annotations

import numpy as np

from sharpmax.report.blocks import (
    Axis,
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
from sharpmax.report.kinds._shared import model_facts, policy_words
from sharpmax.report.kinds.scan_view import Head, ScanView
from sharpmax.report.kinds.token_view import token_view
from sharpmax.report.numbers import fixed, plural, round_all, span
from sharpmax.report.palette import METHODS, Look
from sharpmax.results import Result

CHANGED_MOST = 12
"""Heads in the table of the largest changes."""

MEASURES = (
    ("entropy", "Change of entropy", 2, "nats"),
    ("max_weight", "Change of the largest weight", 3, ""),
    ("sink", "Change of the first token's weight", 3, ""),
)


def refuse_comparison(results: list[Result]) -> str:
    """Return why two scans cannot be compared head by head; empty if they can."""
    first, second = (ScanView.of(result) for result in results)
    if first.scan.layers != second.scan.layers or first.scan.heads != second.scan.heads:
        return "they measured different layers or heads"
    hashes = {result.config.get("inputs_sha256") for result in results}
    if first.scan.tokens != second.scan.tokens or len(hashes) > 1:
        return "they read different inputs: use the same prompt, lengths and seed"
    return ""


def describe(before: Result, after: Result) -> Content:
    """Compare two scans of the same layers, heads and inputs."""
    views = ScanView.of(before), ScanView.of(after)
    names = _names(*views)
    scan = views[0].scan
    heads = _largest_changes(*views)
    first = (heads[0].row, heads[0].column)
    facts = [*model_facts(scan), f"prompt {scan.prompt}", f"{span(scan.tokens)} tokens"]
    facts += [f"{name}: {_policy(view)}" for name, view in zip(names, views, strict=True)]
    tokens = token_view(list(zip(names, views, strict=True)), first)
    return Content(
        what="two scans compared",
        title=f"{names[0].capitalize()} and {names[1]}: {scan.model}",
        facts=facts,
        sentences=_sentences(*views, names),
        verdict=_verdict(*views),
        blocks=[
            *([tokens] if tokens else []),
            _map(*views, first),
            _curves(*views, names),
            _table(*views, heads, names),
        ],
    )


def _names(before: ScanView, after: ScanView) -> tuple[str, str]:
    policies = before.scan.policy, after.scan.policy
    if policies[0] is None and policies[1] is not None:
        # A calibration also softens heads.
        return "plain", "tuned" if policies[1].startswith("calibration") else "sharpened"
    return "first scan", "second scan"


def _policy(view: ScanView) -> str:
    policy = view.scan.policy
    return "plain attention" if policy is None else policy_words(policy)


def strongest_changes(before: ScanView, after: ScanView) -> int | None:
    """Return in how many heads another token has the largest weight at the longest input."""
    if not all("strongest" in view.result.arrays for view in (before, after)):
        return None
    tokens = [view.result.arrays["strongest"][-1, ..., 0] for view in (before, after)]
    return int(sum(tokens[0][h.row, h.column] != tokens[1][h.row, h.column] for h in before.heads))


def _sentences(before: ScanView, after: ScanView, names: tuple[str, str]) -> list[str]:
    tokens = before.scan.tokens[-1]
    wide = [f"{view.mean('effective_tokens', -1):,.1f}" for view in (before, after)]
    sentences = [
        f"An average head attends to about {wide[0]} of {tokens:,} tokens ({names[0]}) and "
        f"{wide[1]} ({names[1]}), as exp of the mean entropy."
    ]
    changed = strongest_changes(before, after)
    if changed is not None:
        heads = plural(len(before.heads), "head")
        sentences.append(f"In {changed} of {heads} another token gets the most weight.")
    relabelled = sum(
        one.label != other.label for one, other in zip(before.heads, after.heads, strict=True)
    )
    whose = "its" if relabelled == 1 else "their"
    sentences.append(f"{plural(relabelled, 'head')} changed {whose} label.")
    return sentences


def _verdict(before: ScanView, after: ScanView) -> Verdict:
    change = after.mean("entropy", -1) - before.mean("entropy", -1)
    tokens = before.scan.tokens[-1]
    way = "falls" if change < 0 else "rises"
    sharpened = before.scan.policy is None and after.scan.policy is not None
    return Verdict(
        "neutral",
        f"The mean entropy of the heads {way} by {abs(change):.2f} nats at {tokens:,} tokens.",
        [
            "That does not say whether answers improve: a head may be there to average. Ask "
            "questions with known answers."
        ],
        command="sharpmax evaluate MODEL --policy tuned"
        if sharpened
        else "sharpmax diagnose MODEL",
    )


def _largest_changes(before: ScanView, after: ScanView) -> list[Head]:
    """Return the heads by how much their entropy changed at the longest input."""

    def change(head: Head) -> float:
        return abs(after.value("entropy", -1, head) - before.value("entropy", -1, head))

    return sorted(before.heads, key=change, reverse=True)


def _map(before: ScanView, after: ScanView, first: tuple[int, int]) -> Heads:
    scan = before.scan
    present = np.zeros((len(scan.layers), len(scan.heads)), bool)
    for head in before.heads:
        present[head.row, head.column] = True
    length = f"at {scan.tokens[-1]:,} tokens"
    measures = []
    for key, name, digits, unit in MEASURES:
        arrays = [view.result.arrays[f"last_{key}"][-1] for view in (before, after)]
        values = np.where(present, arrays[1] - arrays[0], np.nan)
        measures.append(
            Measure(key, f"{name} {length}", round_all(values.tolist()), digits, unit, "signed")
        )
    return Heads(
        title="Change of each head",
        layers=[layer.model_dump() for layer in scan.layers],
        present=present.tolist(),
        measures=measures,
        first=first,
        without="not measured",
        numbers=scan.heads,
        text="Blue: less in the second; red: more.",
    )


def _curves(before: ScanView, after: ScanView, names: tuple[str, str]) -> Chart:
    tokens = before.scan.tokens
    looks = (METHODS["plain"], METHODS["tuned"])
    lines = [
        Line.of(
            Look(name, look.colour),
            tokens,
            [view.mean("entropy", index) for index in range(len(tokens))],
        )
        for name, look, view in zip(names, looks, (before, after), strict=True)
    ]
    return Chart(
        "Mean entropy of the heads",
        Axis("tokens of the input", scale="log", noun="tokens", ticks=tokens),
        Axis("entropy at the last position, nats", digits=2, unit="nats", low=0),
        lines,
    )


def _table(before: ScanView, after: ScanView, heads: list[Head], names: tuple[str, str]) -> Table:
    labels = {(one.row, one.column): one.label for one in after.heads}
    columns = [
        Column("Layer", 0),
        Column("Head", 0),
        Column("Change of entropy", 2),
        Column("Entropy", 2),
        Column("Largest weight", 3),
        Column("Label"),
    ]
    rows = []
    for head in heads[:CHANGED_MOST]:
        pairs = {
            key: [view.value(key, -1, head) for view in (before, after)]
            for key in ("entropy", "max_weight")
        }
        cells = [
            Cell(round_all(pair[1]), " → ".join(fixed(value, digits) for value in pair))
            for pair, digits in zip(pairs.values(), (2, 3), strict=True)
        ]
        label = labels[head.row, head.column]
        change = pairs["entropy"][1] - pairs["entropy"][0]
        said = head.label if label == head.label else f"{head.label} → {label}"
        rows.append([head.layer, head.head, round_all(change), *cells, said])
    return Table(
        f"Heads that changed most at {before.scan.tokens[-1]:,} tokens",
        columns,
        rows,
        f"Arrows lead from {names[0]} to {names[1]}.",
    )
