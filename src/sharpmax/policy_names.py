"""Policies by name, for the command line and the explorer.

A policy is written as its name, followed by a colon and a number if it takes one: `paper`,
`constant:1.2`, `log-length:512`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sharpmax._errors import UserError
from sharpmax.policies import (
    PAPER,
    Constant,
    CriticalScale,
    GrokScale,
    InfoScale,
    Llama4Scale,
    LogLength,
    Policy,
    Saturating,
    TargetEntropy,
    YarnScale,
)


@dataclass(frozen=True)
class NamedPolicy:
    """A policy that users can choose by name."""

    name: str
    label: str
    """What the policy does, short enough for a dropdown on a phone."""
    make: Callable[..., Policy]
    """Return the policy; called with the number if the policy takes one."""
    example: float | None = None
    """A typical number; None if the policy takes none."""

    @property
    def takes_number(self) -> bool:
        return self.example is not None

    @property
    def usage(self) -> str:
        """How to write the policy, with an example of its number."""
        return self.name if self.example is None else f"{self.name}:{self.example:g}"


POLICY_NAMES = {
    policy.name: policy
    for policy in (
        NamedPolicy("paper", "the paper's polynomial", lambda: PAPER),
        NamedPolicy("saturating", "the polynomial held at its peak", lambda: Saturating(PAPER)),
        NamedPolicy("target-entropy", "down to so many nats", TargetEntropy, example=3),
        NamedPolicy("constant", "one factor for all rows", Constant, example=1.2),
        NamedPolicy(
            "log-length", "grows with log n beyond a length, as Qwen 1", LogLength, example=512
        ),
        NamedPolicy("infoscale", "grows to a bound beyond a length", InfoScale, example=512),
        NamedPolicy("yarn", "YaRN's factor, by the length of the row", YarnScale, example=512),
        NamedPolicy("llama4", "Llama 4's steps of this length", Llama4Scale, example=8192),
        NamedPolicy("grok", "log-length by position, as Grok", GrokScale, example=1024),
        NamedPolicy("critical", "this number times log n, at all lengths", CriticalScale, 0.16),
    )
}

POLICY_HELP = ", ".join(f"{policy.usage} ({policy.label})" for policy in POLICY_NAMES.values())
"""All policies in one line, for help texts and error messages."""


def parse_policy(text: str) -> Policy:
    """Return the policy that a text such as `paper` or `constant:1.2` names.

    Raises:
        UserError: The name is unknown, or its number is missing, superfluous or out of range.
    """
    name, colon, number = text.partition(":")
    policy = POLICY_NAMES.get(name)
    if policy is None:
        raise UserError(f"unknown policy {text!r}: expected one of {POLICY_HELP}")
    if colon and not policy.takes_number:
        raise UserError(f"policy {text!r}: {name} takes no number")
    try:
        value = float(number) if policy.takes_number else None
    except ValueError as error:
        raise UserError(f"policy {text!r} needs a number, such as {policy.usage}") from error
    return make_policy(name, value)


def make_policy(name: str, number: float | None = None) -> Policy:
    """Return a policy by its name and number; a number that the policy does not take is ignored.

    Raises:
        UserError: The number is missing or out of range.
    """
    policy = POLICY_NAMES[name]
    if not policy.takes_number:
        return policy.make()
    if number is None:
        raise UserError(f"policy {name} needs a number, such as {policy.example:g}")
    try:
        return policy.make(number)
    except ValueError as error:
        raise UserError(f"policy {name}:{number:g}: {error}") from error


def policy_title(name: str, number: float | None = None) -> str:
    """Return the name of a policy for charts, with its number if it takes one."""
    takes_number = POLICY_NAMES[name].takes_number
    return f"{name} {number:g}" if takes_number and number is not None else name
