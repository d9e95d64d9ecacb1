"""The policies to choose from, each by a name and, where it has one, its number."""

from __future__ import annotations

from collections.abc import Callable

from sharpmax._errors import UserError
from sharpmax.policies import PAPER, Constant, LogLength, Policy, Saturating

POLICIES: dict[str, tuple[str, Callable[[float], Policy]]] = {
    "paper": ("the paper's polynomial", lambda number: PAPER),
    "saturating": ("the same, held at its peak", lambda number: Saturating(PAPER)),
    "constant": ("times a number", Constant),
    "log-length": ("by log n", LogLength),
}
"""By name: what it does, in words that fit a phone, and how it is made of the number."""

NUMBERED = ("constant", "log-length")
"""Those that have a number."""

CHOICES = [(f"{name}: {what}", name) for name, (what, _) in POLICIES.items()]


def policy_of(name: str, number: float | None) -> Policy:
    if number is None and name in NUMBERED:
        raise UserError(f"policy {name} needs a number: type one")
    try:
        return POLICIES[name][1](0.0 if number is None else number)
    except ValueError as error:
        raise UserError(f"policy {name}: {error}") from error


def told(name: str, number: float | None) -> str:
    """As a chart names it."""
    return f"{name} {number:g}" if name in NUMBERED and number is not None else name
