"""Policies by the names that are typed at the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharpmax._errors import UserError
from sharpmax.cli.options import numbers
from sharpmax.policies import PAPER, Constant, LogLength, Policy, Saturating

READY: dict[str, tuple[str, Policy]] = {
    "paper": ("the paper's polynomial", PAPER),
    "saturating": ("the same, without switching itself off above 5.945 nats", Saturating(PAPER)),
}
MADE: dict[str, tuple[str, Callable[[float], Policy]]] = {
    "constant": ("constant:1.2, every row times 1.2", Constant),
    "log-length": ("log-length:512, times log n / log 512 beyond 512 tokens", LogLength),
}
"""Made of a number."""

LISTING = "; ".join(
    [
        *(f"{name}: {what}" for name, (what, _) in READY.items()),
        *(what for what, _ in MADE.values()),
    ]
)


ARMS = f"{LISTING}; any of these with @20-29 in those layers only; or the file of a calibration"


def policy_named(text: str) -> Policy:
    """The policy of a text such as `paper` or `constant:1.2`."""
    name, colon, number = text.partition(":")
    if name in READY:
        if colon:
            raise UserError(f"policy {text!r}: {name} takes no number")
        return READY[name][1]
    if name not in MADE:
        raise UserError(f"unknown policy {text!r}: expected one of {LISTING}")
    what, make = MADE[name]
    try:
        return make(float(number))
    except ValueError as error:
        raise UserError(f"policy {text!r} needs a number ({what}): {error}") from error


def arm_named(text: str) -> tuple[str, Any]:
    """The way of sharpening that a text such as `paper`, `constant:1.2@20-29` or the path of a
    calibration stands for, and the name to print for it.
    """
    # Imported late: `sharpmax --help` should not wait for a framework.
    from sharpmax.hf import Calibration, Condition

    if text.endswith(".json"):
        return Path(text).stem, Condition(Calibration.load(text))
    name, at, layers = text.partition("@")
    return text, Condition(policy_named(name), numbers("--policy", layers) if at else None)
