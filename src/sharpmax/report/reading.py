"""A scan result from a file may be damaged or foreign: checked once, then read by plain names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax.report.numbers import rounded
from sharpmax.report.statistics import LABELS, OPTIONAL, POSITIONS, STATISTICS, Statistic
from sharpmax.results import Result

CONFIG = (
    *("model", "architecture", "parameters", "dtype", "device", "notes"),
    *("prompt", "unit", "lengths", "seed", "policy"),
)
MEASUREMENTS = ("tokens", "layers", "heads", "labels", "slopes", "seconds", "rules")


@dataclass(frozen=True)
class Head:
    """One head by its places in the arrays and by the numbers that the model knows it by."""

    row: int
    column: int
    layer: int
    head: int
    label: str
    slope: float | None


@dataclass(frozen=True)
class Scan:
    """A scan result whose parts fit each other."""

    result: Result

    @property
    def config(self) -> dict[str, Any]:
        return self.result.config

    @property
    def found(self) -> dict[str, Any]:
        return self.result.measurements

    @cached_property
    def statistics(self) -> list[Statistic]:
        """Those that were measured."""
        there = self.result.arrays
        return [
            one for one in STATISTICS if all(f"{where}_{one.key}" in there for where in POSITIONS)
        ]

    @cached_property
    def heads(self) -> list[Head]:
        """Every head that exists: layers with fewer heads than others leave gaps."""
        existing = np.isfinite(self.result.arrays["last_entropy"]).any(axis=0)
        return [
            Head(row, column, layer["index"], number, labels[column], slopes[column])
            for row, (layer, labels, slopes) in enumerate(
                zip(self.found["layers"], self.found["labels"], self.found["slopes"], strict=True)
            )
            for column, number in enumerate(self.found["heads"])
            if column < len(labels) and labels[column] and existing[row, column]
        ]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Heads by label: the known labels first, also those that no head has."""
        found = [head.label for head in self.heads]
        return {label: found.count(label) for label in [*LABELS, *sorted(set(found) - set(LABELS))]}

    def numbers(self, name: str) -> list[Any]:
        """An array as nested lists of rounded numbers, None where it has none."""
        return rounded(self.result.arrays[name].tolist())


def read(result: Result) -> Scan:
    """The result as a scan; one that lacks a part or whose parts do not fit is refused."""
    for part, keys, there in (
        ("config", CONFIG, result.config),
        ("measurements", MEASUREMENTS, result.measurements),
        ("arrays", _required_arrays(), result.arrays),
    ):
        lacking = [key for key in keys if key not in there]
        if lacking:
            raise UserError(f"the scan lacks {', '.join(lacking)} in its {part}: run it again")
    found = result.measurements
    shape = (len(found["tokens"]), len(found["layers"]), len(found["heads"]))
    ours = [f"{where}_{one.key}" for where in POSITIONS for one in STATISTICS] + ["last_count"]
    for name, array in result.arrays.items():
        if name in ours and array.shape != shape:
            raise UserError(f"the scan is damaged: {name} has shape {array.shape}, not {shape}")
    for name, values in (
        ("lengths", result.config["lengths"]),
        ("seconds", found["seconds"]),
    ):
        if len(values) != shape[0]:
            raise UserError(f"the scan is damaged: {len(values)} {name}, {shape[0]} expected")
    for name in ("labels", "slopes"):
        if [len(row) for row in found[name]] != [shape[2]] * shape[1]:
            raise UserError(f"the scan is damaged: {name} is not one row of heads for each layer")
    scan = Scan(result)
    if not scan.heads or not np.isfinite(result.arrays["last_entropy"]).any(axis=(1, 2)).all():
        raise UserError("the scan measured no head at some length: nothing to report")
    return scan


def _required_arrays() -> list[str]:
    required = [one.key for one in STATISTICS if one.key not in OPTIONAL]
    return [f"{where}_{key}" for where in POSITIONS for key in required] + ["last_count"]
