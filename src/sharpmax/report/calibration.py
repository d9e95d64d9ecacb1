"""Which heads are worth sharpening? A calibration file as a map, a table and the line to type.

It is not a result: it records how its heads were found, but neither command nor machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict

from sharpmax._errors import UserError
from sharpmax.report.blocks import Axis, Block, Chart, Column, Content, Heads, Line, Measure, Table
from sharpmax.report.numbers import counted, listed
from sharpmax.results import read_marked

MARK: Final = "sharpmax-calibration"

MEASURES = (
    ("benefit", "Benefit of sharpening", "nats", 3),
    ("rate", "Rate", "for each nat of log(tokens)", 3),
    ("short_entropy", "Entropy on short texts", "nats", 2),
    ("long_entropy", "Entropy on long texts", "nats", 2),
)


class Calibration(BaseModel):
    """What a page needs of the file; a head's keys are checked where they are read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str] = "calibration"

    format: Literal["sharpmax-calibration"]
    version: Literal[1]
    model: str
    weights: str
    architecture: dict[str, Any]
    method: dict[str, Any]
    from_tokens: int
    heads: tuple[dict[str, Any], ...]


def is_one(path: Path) -> bool:
    """Whether the file says so of itself; of one that cannot be read, `Result.load` says why."""
    try:
        return bool(json.loads(path.read_text("utf-8"))["format"] == MARK)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def load(path: Path) -> Calibration:
    found = read_marked(path, Calibration, MARK, "version", 1, "a calibration")
    sizes = found.architecture.get("heads", ())
    for one in found.heads:
        layer, head = one.get("layer", -1), one.get("head", -1)
        if not (0 <= layer < len(sizes) and 0 <= head < sizes[layer]):
            raise UserError(
                f"{path} is damaged: layer {layer}, head {head} is not in its architecture"
            )
    return found


def content(found: Calibration) -> Content:
    sizes, method = found.architecture["heads"], found.method
    layers = listed(sorted({one["layer"] for one in found.heads}))
    findings = [
        f"{len(found.heads)} of {sum(sizes):,} heads are worth sharpening, by the task "
        f"{method['task']} ({method['choose']}), in layers {layers}."
        if found.heads
        else f"No head is worth sharpening, by the task {method['task']} ({method['choose']}).",
        f"A row that sees n tokens is sharpened by 1 + rate * log(n / {found.from_tokens:,}), at "
        f"most twofold; up to {found.from_tokens:,} tokens the model answers as before, bit for "
        "bit.",
    ]
    helpful = [one for one in found.heads if one.get("benefit") is not None]
    if helpful:
        best = max(helpful, key=lambda one: one["benefit"])
        findings.append(
            f"The most helpful is head {best['head']} of layer {best['layer']}: log p of the right "
            f"answer grows by {best['benefit']:.2f} nats with the logarithm of its inverse "
            f"temperature (standard error {best['benefit_error']:.2f})."
        )
    made = f"sharpmax calibrate, task {method['task']}, by {method['choose']}"
    return Content(
        what="calibration",
        title=found.model,
        facts=[
            found.architecture["model_type"],
            f"{counted(len(sizes), 'attention layer')}",
            f"made by {made}, seed {method['seed']}",
            f"weights {found.weights[:12]}",
        ],
        findings=findings,
        advice=_advice(found),
        code=None
        if not found.heads
        else 'with sharpmax.hf.sharpen(model, "calibration.json"):\n    ...  # your task',
        blocks=[_map(found, sizes), *_rates(found), _table(found)] if found.heads else [],
    )


def _advice(found: Calibration) -> list[str]:
    if not found.heads:
        return ["Nothing here asks for sharpening."]
    return [
        "Sharpen these heads while the model does the task that they were chosen on, and evaluate "
        "it with other texts than these (sharpmax evaluate --policy FILE). On other tasks they may "
        "do harm."
    ]


def _map(found: Calibration, sizes: list[int]) -> Heads:
    widest = max(sizes)
    measures = []
    for key, name, unit, digits in MEASURES:
        if not any(one.get(key) is not None for one in found.heads):
            continue
        values: list[list[float | None]] = [[None] * widest for _ in sizes]
        for one in found.heads:
            values[one["layer"]][one["head"]] = one.get(key)
        measures.append(Measure(key, name, values, digits, unit))
    first = max(found.heads, key=lambda one: (one.get("benefit") or 0, one["rate"]))
    return Heads(
        title="Map of heads",
        layers=[
            {"index": layer, "name": f"attention layer {layer}"} for layer in range(len(sizes))
        ],
        present=[[head < size for head in range(widest)] for size in sizes],
        measures=measures,
        first=(first["layer"], first["head"]),
        without="not sharpened",
    )


def _rates(found: Calibration) -> list[Block]:
    tried = found.method.get("by_rate")
    if not tried:
        return []
    rates = sorted(tried, key=float)
    before = found.method["log_probability_of_long"]
    line = Line("sharpened", [0.0, *map(float, rates)], [before, *(tried[rate] for rate in rates)])
    chart = Chart(
        "The rates that were tried",
        Axis("rate of the chosen heads", digits=2, noun="(rate)"),
        Axis("log p of the right answer on long texts, nats", digits=3, unit="nats"),
        [line],
    )
    return [chart]


def _table(found: Calibration) -> Table:
    keys = [key for key in ("benefit", "benefit_error") if any(key in one for one in found.heads)]
    names = {"benefit": "Benefit", "benefit_error": "Its standard error"}
    columns = [Column("Layer", 0), Column("Head", 0), Column("Rate", 3)]
    columns += [Column("Entropy, short texts", 2), Column("Entropy, long texts", 2)]
    columns += [Column(names[key], 3) for key in keys]
    rows = [
        [
            *(one[key] for key in ("layer", "head", "rate", "short_entropy", "long_entropy")),
            *(one.get(key) for key in keys),
        ]
        for one in found.heads
    ]
    return Table("The heads to sharpen", columns, rows)
