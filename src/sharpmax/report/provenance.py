"""A number is worth what is known of its making: the command, the versions, the machine."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from sharpmax.report.numbers import amount, counted
from sharpmax.results import Result


def of(result: Result, took: str = "") -> dict[str, str]:
    """By name, in the order in which one asks; `took` says more of the time."""
    origin = result.provenance
    versions = {"sharpmax": origin.sharpmax, "python": origin.python, **origin.packages}
    seeds = {"Seeds": ", ".join(map(str, result.seeds))} if result.seeds else {}
    return {
        "Command": origin.command,
        "Started": f"{origin.started.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "Took": f"{origin.seconds:,.1f} s in all{took}",
        **seeds,
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Commit": origin.commit or "not run from a checkout",
        "Machine": f"{origin.processor}, {counted(origin.cores, 'core')}, {origin.platform}",
    }


def model_of(config: dict[str, Any]) -> list[str]:
    """What is known of the model that was measured."""
    return [
        str(config["architecture"]),
        f"{amount(config['parameters'])} parameters",
        f"{config['dtype']} on {config['device']}",
    ]
