"""How dispersed is each head of a model? A scan as one section: sentences, map, curves, table."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC
from typing import Any

from sharpmax.report import reading, summary
from sharpmax.report.page import Section, embedded_json, fill
from sharpmax.report.reading import Head, Scan
from sharpmax.report.statistics import POSITIONS
from sharpmax.results import Result

WIDE = 16
"""Heads a layer from which the map takes the whole width of the page."""


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
        provenance=_provenance(result),
        wide=len(scan.found["heads"]) > WIDE,
        data=embedded_json(_data(scan)),
    )
    return Section(str(scan.config["model"]), anchor, html)


def _facts(scan: Scan) -> list[str]:
    config = scan.config
    facts = [
        str(config["architecture"]),
        f"{_amount(config['parameters'])} parameters",
        f"{config['dtype']} on {config['device']}",
        f"prompt {config['prompt']}",
        _lengths(scan),
        f"seed {config['seed']}",
    ]
    return facts + ([f"measured with policy {config['policy']}"] if config["policy"] else [])


def _lengths(scan: Scan) -> str:
    """Tokens, and what was asked for where that was something else."""
    asked, tokens = scan.config["lengths"], scan.found["tokens"]

    def ends(values: list[int]) -> str:
        return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"

    text = f"{ends(tokens)} tokens"
    if asked != tokens:
        text = f"{ends(asked)} {scan.config['unit']} ({text})"
    return text if len(asked) == 1 else f"{text} in {len(asked)} lengths"


def _amount(number: int) -> str:
    """A count as people say it: 135 million, 1.24 billion."""
    for size, name in ((10**9, " billion"), (10**6, " million")):
        if number >= size:
            # Three digits, but never in powers of ten.
            decimals = max(0, 2 - int(math.log10(number / size)))
            return f"{number / size:.{decimals}f}{name}"
    return f"{number:,}"


def _row(scan: Scan, head: Head) -> dict[str, Any]:
    """One head of the table, at the last position of the longest input."""
    cells = []
    for one in scan.statistics:
        value = float(scan.result.arrays[f"last_{one.key}"][-1, head.row, head.column])
        cells.append(_number(reading.rounded(value), one.digits))
    count = _number(float(scan.result.arrays["last_count"][-1, head.row, head.column]), 0)
    return {"head": head, "slope": _number(head.slope, 3), "cells": cells, "count": count}


def _number(value: float | None, digits: int) -> str:
    """As the page's script writes it too; no minus sign before a zero."""
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    return f"{value:z.{digits}f}"


def _rules(scan: Scan) -> dict[str, str]:
    """As sentences; in the order of the summary, then any other."""
    rules = scan.found["rules"]
    order = [label for label in [*scan.counts, *sorted(rules)] if label in rules]
    return {label: f"{rules[label][:1].upper()}{rules[label][1:].rstrip('.')}." for label in order}


def _provenance(result: Result) -> dict[str, str]:
    origin, found = result.provenance, result.measurements
    versions = {"sharpmax": origin.sharpmax, "python": origin.python, **origin.packages}
    each = ", ".join(
        f"{seconds:.3g} s at {tokens:,}"
        for seconds, tokens in zip(found["seconds"], found["tokens"], strict=True)
    )
    cores = "1 core" if origin.cores == 1 else f"{origin.cores} cores"
    return {
        "Command": origin.command,
        "Started": f"{origin.started.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "Took": f"{origin.seconds:,.1f} s in all; by tokens: {each}",
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Commit": origin.commit or "not run from a checkout",
        "Machine": f"{origin.processor}, {cores}, {origin.platform}",
    }


def _data(scan: Scan) -> dict[str, Any]:
    """What the page's script draws from."""
    found, first = scan.found, summary.first_shown(scan)
    arrays = [f"{where}_{one.key}" for where in POSITIONS for one in scan.statistics]
    labels: list[list[str | None]] = [[None for _ in found["heads"]] for _ in found["layers"]]
    slopes: list[list[float | None]] = [[None for _ in found["heads"]] for _ in found["layers"]]
    for head in scan.heads:
        labels[head.row][head.column] = head.label
        slopes[head.row][head.column] = reading.rounded(head.slope)
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
