"""How dispersed is each head of a model? A scan as one section: sentences, map, curves, table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sharpmax.report import provenance, reading, summary
from sharpmax.report.blocks import WIDE
from sharpmax.report.numbers import ends, number, rounded
from sharpmax.report.page import Section, embedded_json, fill
from sharpmax.report.reading import Head, Scan
from sharpmax.report.statistics import POSITIONS
from sharpmax.results import Result


def section(result: Result, anchor: str, level: int) -> Section:
    """The section of one scan, its title a heading of the given level."""
    scan = reading.read(result)
    html = fill(
        "scan.html",
        anchor=anchor,
        level=level,
        scan=scan,
        facts=_facts(scan),
        sentences=summary.sentences(scan),
        advice=summary.advice(scan),
        head_count=len(scan.heads),
        positions=POSITIONS,
        rows=[_row(scan, head) for head in scan.heads],
        rules=_rules(scan),
        origin=provenance.of(result, _took(result)),
        wide=len(scan.found["heads"]) > WIDE,
        data=embedded_json(_data(scan)),
    )
    return Section(str(scan.config["model"]), "scan", anchor, html)


def _facts(scan: Scan) -> list[str]:
    config = scan.config
    facts = [
        *provenance.model_of(config),
        f"prompt {config['prompt']}",
        _lengths(scan),
        f"seed {config['seed']}",
    ]
    return facts + ([f"measured with policy {config['policy']}"] if config["policy"] else [])


def _lengths(scan: Scan) -> str:
    """Tokens, and what was asked for where that was something else."""
    asked, tokens = scan.config["lengths"], scan.found["tokens"]
    text = f"{ends(tokens)} tokens"
    if asked != tokens:
        text = f"{ends(asked)} {scan.config['unit']} ({text})"
    return text if len(asked) == 1 else f"{text} in {len(asked)} lengths"


def _row(scan: Scan, head: Head) -> dict[str, Any]:
    """One head of the table, at the last position of the longest input."""
    cells = []
    for one in scan.statistics:
        value = float(scan.result.arrays[f"last_{one.key}"][-1, head.row, head.column])
        cells.append(_cell(value, one.digits))
    count = float(scan.result.arrays["last_count"][-1, head.row, head.column])
    return {"head": head, "cells": [_cell(head.slope, 3), *cells, _cell(count, 0)]}


def _cell(value: float | None, digits: int) -> tuple[Any, str]:
    """What it is sorted by, "" if it is not known, and what is shown."""
    value = rounded(value)
    return "" if value is None else value, number(value, digits)


def _rules(scan: Scan) -> dict[str, str]:
    """As sentences; in the order of the summary, then any other."""
    rules = scan.found["rules"]
    order = [label for label in [*scan.counts, *sorted(rules)] if label in rules]
    return {label: f"{rules[label][:1].upper()}{rules[label][1:].rstrip('.')}." for label in order}


def _took(result: Result) -> str:
    found = result.measurements
    each = ", ".join(
        f"{seconds:.3g} s at {tokens:,}"
        for seconds, tokens in zip(found["seconds"], found["tokens"], strict=True)
    )
    return f"; by tokens: {each}"


def _data(scan: Scan) -> dict[str, Any]:
    """What the page's script draws from."""
    found, first = scan.found, summary.first_shown(scan)
    arrays = [f"{where}_{one.key}" for where in POSITIONS for one in scan.statistics]
    labels: list[list[str | None]] = [[None for _ in found["heads"]] for _ in found["layers"]]
    slopes: list[list[float | None]] = [[None for _ in found["heads"]] for _ in found["layers"]]
    for head in scan.heads:
        labels[head.row][head.column] = head.label
        slopes[head.row][head.column] = rounded(head.slope)
    return {
        "layers": [
            {key: layer.get(key) for key in ("index", "name", "window")}
            for layer in found["layers"]
        ],
        "heads": found["heads"],
        "tokens": found["tokens"],
        "labels": labels,
        "slopes": slopes,
        "rules": _rules(scan),
        "order": [label for label, count in scan.counts.items() if count],
        "first": [first.row, first.column],
        "positions": POSITIONS,
        "statistics": [asdict(one) for one in scan.statistics],
        "count": scan.numbers("last_count"),
        "values": {name: scan.numbers(name) for name in arrays},
    }
