"""A scan whose parts were checked: its heads, its labels, and what each statistic means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from sharpmax._errors import UserError
from sharpmax.report.palette import LABELS
from sharpmax.results import Result, schemas

POSITIONS = {"last": "at the last position", "mean": "averaged over positions"}


@dataclass(frozen=True)
class Statistic:
    """A statistic of a row of attention weights p_1 ... p_n with logits z_1 ... z_n."""

    key: str
    name: str
    unit: str
    formula: str
    meaning: str
    digits: int
    """Decimals in the table."""
    scale: Literal["share", "entropy", "count", "free"]
    """What its axis spans: 0 to 1, 0 to log n, 1 to n, or what was measured."""
    short: str
    """Its heading in the terminal."""


STATISTICS = (
    Statistic(
        "normalised_entropy",
        "Normalised entropy",
        "",
        "entropy / log(n), n visible tokens",
        "0: all weight on one token; 1: uniform. Comparable between lengths.",
        3,
        "share",
        "of log n",
    ),
    Statistic(
        "entropy",
        "Entropy",
        "nats",
        "-sum over i of p_i log(p_i)",
        "0: all weight on one token; log(n): uniform over n tokens.",
        3,
        "entropy",
        "Entropy",
    ),
    Statistic(
        "effective_tokens",
        "Effective tokens",
        "",
        "exp(entropy)",
        "The number of tokens over which a uniform head of the same entropy would spread.",
        1,
        "count",
        "Effective",
    ),
    Statistic(
        "max_weight",
        "Largest weight",
        "",
        "max over i of p_i",
        "The weight of the token that gets most.",
        4,
        "share",
        "Largest",
    ),
    Statistic(
        "sink",
        "First token",
        "",
        "p_1",
        "The weight of the first token, where many heads put what they do not use.",
        4,
        "share",
        "Sink",
    ),
    Statistic(
        "spread",
        "Logit spread",
        "",
        "max over i of z_i - min over i of z_i",
        "While it stays bounded, every weight disperses as n grows.",
        2,
        "free",
        "Spread",
    ),
    Statistic(
        "varentropy",
        "Varentropy",
        "nats²",
        "sum over i of p_i (log p_i + entropy)²",
        "How fast sharpening works: the entropy falls by this much per unit of log(factor).",
        3,
        "free",
        "",
    ),
    Statistic(
        "learned_sink",
        "Learned sink",
        "",
        "exp(s) / (exp(s) + sum over i of exp(z_i)), s the learned logit",
        "The share that goes to a learned sink, and to no token.",
        4,
        "share",
        "",
    ),
)
OPTIONAL = ("learned_sink", "varentropy")
"""Statistics that older scans lack, or that few models have."""


@dataclass(frozen=True)
class Head:
    """One head: its row and column in the arrays, and its numbers in the model."""

    row: int
    column: int
    layer: int
    head: int
    label: str
    slope: float | None
    law: str = ""
    """The law of sharpening that would hold its focus; empty if that was not measured."""


@dataclass(frozen=True)
class ScanView:
    """A scan whose parts fit each other."""

    result: Result
    scan: schemas.Scan

    @classmethod
    def of(cls, result: Result) -> ScanView:
        """Check that the parts of a scan are there and fit each other."""
        scan = schemas.Scan.of(result)
        required = [f"{where}_{one.key}" for where in POSITIONS for one in STATISTICS
                    if one.key not in OPTIONAL] + ["last_count"]  # fmt: skip
        missing = [key for key in required if key not in result.arrays]
        if missing:
            raise UserError(f"the scan lacks {', '.join(missing)} in its arrays: run it again")
        shape = (len(scan.tokens), len(scan.layers), len(scan.heads))
        for name in [*required, *(f"{where}_{key}" for where in POSITIONS for key in OPTIONAL)]:
            if name in result.arrays and result.arrays[name].shape != shape:
                found = result.arrays[name].shape
                raise UserError(f"the scan is damaged: {name} has shape {found}, not {shape}")
        for name in ("lengths", "seconds"):
            count = len(getattr(scan, name))
            if count != shape[0]:
                raise UserError(f"the scan is damaged: {count} {name}, {shape[0]} expected")
        for name in ("labels", "slopes"):
            if [len(row) for row in getattr(scan, name)] != [shape[2]] * shape[1]:
                raise UserError(f"the scan is damaged: {name} is not one row of heads per layer")
        if scan.laws and (
            [len(row) for row in scan.laws] != [shape[2]] * shape[1]
            or result.arrays.get("growth_power", np.empty(0)).shape != shape[1:]
        ):
            raise UserError("the scan is damaged: laws are not one row of heads per layer")
        view = cls(result, scan)
        measured = np.isfinite(result.arrays["last_entropy"]).any(axis=(1, 2)).all()
        if not view.heads or not measured:
            raise UserError("the scan measured no head at some length: nothing to report")
        return view

    @cached_property
    def statistics(self) -> list[Statistic]:
        """The statistics that were measured."""
        return [one for one in STATISTICS if f"last_{one.key}" in self.result.arrays]

    @cached_property
    def heads(self) -> list[Head]:
        """Every head that exists: layers with fewer heads than others leave gaps."""
        existing = np.isfinite(self.result.arrays["last_entropy"]).any(axis=0)
        scan = self.scan
        return [
            Head(
                *(row, column, scan.layers[row].index, number, label, scan.slopes[row][column]),
                scan.laws[row][column] if scan.laws else "",
            )
            for row, labels in enumerate(scan.labels)
            for column, (number, label) in enumerate(zip(scan.heads, labels, strict=True))
            if label and existing[row, column]
        ]

    @cached_property
    def dispersing(self) -> list[Head]:
        return [head for head in self.heads if head.label == "disperses"]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Heads by label: the known labels first, also those that no head has."""
        labels = [head.label for head in self.heads]
        known = [*LABELS, *sorted(set(labels) - set(LABELS))]
        return {label: labels.count(label) for label in known}

    def value(self, key: str, length: int, head: Head) -> float:
        """Return a statistic of a head at the last position."""
        return float(self.result.arrays[f"last_{key}"][length, head.row, head.column])

    def mean(self, key: str, length: int) -> float:
        """Return the mean of a statistic over all heads at the last position.

        Effective tokens are averaged as entropies: a few uniform heads would dominate their mean.
        """
        if key == "effective_tokens":
            return math.exp(self.mean("entropy", length))
        return float(np.nanmean(self.result.arrays[f"last_{key}"][length], dtype=np.float64))
