"""Serving engines compared with `sharpen`, and what the vLLM plugin costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sharpmax.report.blocks import Block, Cell, Column, Content, Table, Verdict
from sharpmax.report.numbers import join, plural
from sharpmax.results import Result, schemas


def describe(result: Result) -> Content:
    """Describe how serving engines agree with transformers, answer questions and keep up."""
    serving = schemas.Serving.of(result)
    blocks: list[Block] = [_agreement(serving.groups()), _answers(serving.lookup)]
    sentences = [
        "Every comparison is within its tolerance: log-probabilities, in nats, with the "
        "calibration applied.",
        "With rates of 0, vLLM's log-probabilities are those of stock vLLM bit for bit, in "
        f"{plural(serving.zero_rates.prompts, 'text')}; so are those of short texts at any rates.",
    ]
    if serving.throughput is not None:
        workloads = serving.throughput.workloads
        blocks.append(_throughput(serving.throughput))
        ratios = join([f"{work.ratio:.2f} for {name}" for name, work in workloads.items()])
        spread = max(work.stock_spread for work in workloads.values())
        sentences.append(
            f"Time with the plugin as a ratio to stock vLLM: {ratios} (lower is better). "
            f"Processes of stock vLLM differ among themselves by a factor of up to {spread:.2f}."
        )
    versions = {**serving.parity.versions, **serving.gguf.versions}
    return Content(
        what="comparison of serving engines",
        title=f"Serving a calibration: {serving.model}",
        facts=[f"{name} {version}" for name, version in versions.items()],
        sentences=sentences,
        verdict=Verdict(
            "good",
            "The engines answer as sharpen does.",
            [
                f"The exports hold the factors of {serving.export.at_length:,} tokens and are "
                "compared with constant factors.",
                "A quantised GGUF file is compared with the dequantised model. llama.cpp rounds "
                "activations to 8 bits there, which moves the plain model as much.",
            ],
            command="make test-serving",
        ),
        blocks=blocks,
    )


def _agreement(groups: Mapping[str, Mapping[str, schemas.Agreement]]) -> Table:
    columns = [
        Column("Engine"),
        Column("What"),
        Column("Compared", 0, short=""),
        Column("Largest difference", 6, "lower", short="Difference"),
        Column("Tolerance", 6, short=""),
        Column("Change by the calibration", 2, short="Change"),
    ]
    rows = [
        [
            engine,
            name,
            part.compared,
            _small(part.largest_difference),
            _small(part.tolerance),
            part.effect,
        ]
        for engine, parts in groups.items()
        for name, part in parts.items()
    ]
    text = "Largest differences of log-probabilities, in nats, against transformers."
    return Table("Agreement with sharpen", columns, rows, text)


def _small(number: float) -> Cell:
    return Cell(number, f"{number:.1e}")


def _answers(lookup: schemas.ServingLookup) -> Table:
    columns = [Column("Engine and model"), Column(f"Right of {lookup.questions}", 0, "higher")]
    text = f"The same questions about {lookup.names} names in each engine."
    return Table("Lookup", columns, list(lookup.right.items()), text)


def _throughput(times: schemas.ServingThroughput) -> Table:
    columns = [
        Column("Workload"),
        Column("Stock, s", 2, "lower"),
        Column("Plugin, s", 2, "lower"),
        Column("Ratio", 2, "lower"),
        Column("Stock processes", 2, short=""),
    ]
    rows: list[list[Any]] = []
    for name, work in times.workloads.items():
        low, high = work.quartiles
        ratio = Cell(work.ratio, f"{work.ratio:.2f} ({low:.2f} to {high:.2f})")
        rows.append([name, work.stock_seconds, work.plugin_seconds, ratio, work.stock_spread])
    text = (
        f"Median ratio in the same round, with quartiles. {times.processes} processes of each kind "
        f"with {plural(times.threads, 'thread')}; the last column is the slowest process of stock "
        "vLLM relative to the fastest."
    )
    return Table("Time", columns, rows, text)
