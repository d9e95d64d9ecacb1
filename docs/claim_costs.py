"""What benchmarks and CLRS-Text say, in one cell of a table each; see `docs/claim_numbers.py`."""

from __future__ import annotations

from typing import Any

from claim_numbers import AGAIN

from sharpmax.report.numbers import counted
from sharpmax.results import Result

LONG = 1024
"""From so many tokens on, a call's own cost no longer matters."""


def _range(rows: dict[str, Any], way: str) -> str:
    ratios = [row[way]["ratio"] for row in rows.values() if way in row]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _is_old(result: Result) -> bool:
    """Before there were two head sizes and the kernel for CPUs."""
    return "dims" not in result.config


def torch_prefill(result: Result) -> str:
    if _is_old(result):
        return AGAIN
    short: dict[str, Any] = {}
    long: dict[str, Any] = {}
    for name, row in result.measurements["prefill"].items():
        tokens = int(name.partition(" ")[0].replace(",", ""))
        (long if tokens >= LONG else short)[name] = row
    return (
        f"{_range(long, 'cpu')} times SDPA's time from {LONG:,} tokens up, {_range(short, 'cpu')} "
        f"below; statistics alone {_range(long, 'statistics')} and {_range(short, 'statistics')}; "
        f"the textbook's matrix {_range(long, 'textbook')} and {_range(short, 'textbook')}; medians"
    )


def torch_decode(result: Result) -> str:
    if _is_old(result):
        return AGAIN
    rows = result.measurements["decode"]
    return (
        f"{_range(rows, 'cpu')} times SDPA's time, {result.config['decode_keys']:,} keys, medians"
    )


def torch_memory(result: Result) -> str:
    if _is_old(result):
        return AGAIN
    rows = result.measurements["memory"]
    told = ", ".join(
        f"{name} {row['megabytes']:,.0f} ({counted(row['heads'], 'head')})"
        for name, row in rows.items()
    )
    return f"MB at {result.config['memory_tokens']:,} tokens: {told}"


def jax_prefill(result: Result) -> str:
    rows, memory = result.measurements["prefill"], result.measurements["memory"]
    longest = list(memory)[-1]
    return (
        f"{_range(rows, 'ours')} times the time of jax.nn, statistics alone "
        f"{_range(rows, 'statistics')}; {memory[longest]['ours']:,.0f} MB instead of "
        f"{memory[longest]['jax.nn']:,.0f} at {longest}"
    )


def scan_cost(result: Result) -> str:
    told = [
        f"{row['ratio']:.2f} ({row['ratio_range'][0]:.2f} to {row['ratio_range'][1]:.2f}) at "
        f"{row['tokens']:,} tokens"
        for row in result.measurements["rows"]
    ]
    return f"{', '.join(told)}; entropies within {result.measurements['largest_difference']:.0e}"


def head_training(result: Result) -> str:
    speed = result.measurements["training"]
    low, high = speed["range"]
    return f"{speed['speed_up']:.1f} times as fast ({low:.1f} to {high:.1f})"
