"""What does it cost? Benchmarks: time and memory as ratios to what one would use instead."""

from __future__ import annotations

from typing import Any

from sharpmax.report.blocks import Block, Column, Content, Table, Told
from sharpmax.report.numbers import counted, number
from sharpmax.results import Result

PARTS = {
    "prefill": "Time over whole inputs",
    "decode": "Time of one token more",
    "growth": "Time as the input grows",
    "memory": "Memory, MB",
    "torch_after": "Time of something else, right after",
    "first_call": "The first call of a process, seconds",
}


def attention(result: Result) -> Content:
    """Attention for PyTorch or JAX."""
    found, config = result.measurements, result.config
    library = {"bench-torch": "PyTorch", "bench-jax": "JAX"}[result.kind]
    blocks = [_part(name, found[name]) for name in found if isinstance(found[name], dict)]
    return Content(
        what="benchmark",
        title=f"Attention for {library}: time and memory",
        facts=[
            f"{counted(config['heads'], 'head')} of {_sizes(config)} channels",
            _rounds(config["rounds"]),
        ],
        findings=[_slowest(found["prefill"])],
        advice=["Ratios hold for this machine; run make bench on yours."],
        blocks=blocks,
    )


def _sizes(config: dict[str, Any]) -> str:
    return " and ".join(map(str, config.get("dims", [config.get("dim")])))


def _rounds(rounds: int | dict[str, int]) -> str:
    """As many for all, or by the number of tokens."""
    if isinstance(rounds, int):
        return counted(rounds, "round")
    return f"{min(rounds.values())} to {max(rounds.values())} rounds"


def _slowest(prefill: dict[str, Any]) -> str:
    baseline, *others = next(iter(prefill.values()))
    said = []
    for name in others:
        ratios = [row[name]["ratio"] for row in prefill.values() if name in row]
        said.append(f"{name} {min(ratios):.2f} to {max(ratios):.2f}")
    return f"Over whole inputs, times the time of {baseline}: {'; '.join(said)}."


def _part(name: str, rows: dict[str, Any]) -> Block:
    ways = list(dict.fromkeys(way for row in rows.values() for way in row))
    timed = isinstance(next(iter(next(iter(rows.values())).values())), dict)
    made = []
    for case, row in rows.items():
        cells = [_cell(row.get(way)) for way in ways]
        made.append([f"{int(case):,} tokens" if case.isdecimal() else case, *cells])
    columns = [Column("Case"), *(Column(way, _digits(rows, way)) for way in ways)]
    text = "Ratio of times, its quartiles, and milliseconds." if timed else ""
    return Table(PARTS.get(name, name), columns, made, text)


def _digits(rows: dict[str, Any], way: str) -> int:
    return 0 if all(isinstance(row.get(way), int) for row in rows.values()) else 2


def _cell(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    text = f"{value['ratio']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
    return Told(value["ratio"], f"{text}, {number(value['milliseconds'], 1)} ms")


def scan(result: Result) -> Content:
    """A scan against a plain pass of the model."""
    found, config = result.measurements, result.config
    columns = [Column("Tokens", 0), Column("A plain pass, s", 2), Column("The scan, s", 2)]
    columns += [Column("Ratio", 2), Column("Rounds", 0), Column("Peak memory, GB", 2)]
    keys = ("tokens", "plain_seconds", "scan_seconds", "ratio", "rounds", "peak_gigabytes")
    rows = [[row.get(key) for key in keys] for row in found["rows"]]
    told = ", ".join(f"{row['ratio']:.2f} at {row['tokens']:,} tokens" for row in found["rows"])
    return Content(
        what="benchmark",
        title=f"What a scan costs: {config['model']}",
        facts=[f"{counted(config['threads'], 'thread')}"],
        findings=[
            f"A scan takes these times the time of a plain pass of the model: {told}.",
            f"Its statistics differ from those of whole matrices by at most "
            f"{found['largest_difference']:.1g}, at {config['checked_tokens']:,} tokens.",
        ],
        advice=[],
        blocks=[Table("By length", columns, rows)],
    )


def max_retrieval(result: Result) -> Content:
    """Training and examining a head."""
    training, exam = result.measurements["training"], result.measurements["exam"]
    config = result.config
    rows = [[name, value] for name, value in training["milliseconds"].items()]
    low, high = training["range"]
    return Content(
        what="benchmark",
        title="What max retrieval costs",
        facts=[f"batches of {config['batch']}", f"{counted(config['rounds'], 'round')}"],
        findings=[
            f"A training step is {training['speed_up']:.1f} times as fast as the model as written "
            f"({low:.1f} to {high:.1f}).",
            f"Examining {config['sets']:,} sets of {config['items']:,} items takes "
            f"{exam['seconds']:.1f} s and {exam['peak_gigabytes']:.2f} GB.",
        ],
        advice=[],
        blocks=[Table("A training step", [Column("Way"), Column("Milliseconds", 2)], rows)],
    )
