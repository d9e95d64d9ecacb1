"""Conditions of an evaluation: the plain model, and the model sharpened in different ways."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibration import Calibration, find_calibration
from sharpmax.policies import Policy

PLAIN = "plain"
"""The name of the condition that leaves the model unchanged."""


@dataclass(frozen=True)
class Condition:
    """A model with a policy, to be compared with the plain model in `evaluate`.

    Use it to sharpen only some layers or heads; for all heads, or for a calibration, `evaluate`
    also takes the policy or the calibration itself.

    Examples:
        >>> evaluate(model, tokenizer, "lookup", {"late": Condition(sx.PAPER, layers=[29])})

    Attributes:
        policy: A policy, a calibration or its name as in `sharpen`, or None to leave the model
            unchanged.
        layers: Numbers of the layers to sharpen; None for all. Not with a calibration.
        heads: Numbers of the heads to sharpen in each of these layers; None for all. Not with a
            calibration.
    """

    policy: Policy | Calibration | str | None
    layers: Collection[int] | None = None
    heads: Collection[int] | None = None

    def apply(self, model: PreTrainedModel) -> AbstractContextManager[Any]:
        """Return a context in which the model is sharpened as this condition says.

        Args:
            model: The model; on leaving the context it is as before.

        Returns:
            The context manager of `sharpmax.hf.sharpen`, or one that does nothing.

        Raises:
            UserError: On entering, if the model does not have these layers or heads, or if the
                calibration is for another architecture.
        """
        if self.policy is None:
            return nullcontext()
        return sharpen(model, self.policy, layers=self.layers, heads=self.heads)

    def describe(self) -> dict[str, Any]:
        """Return the JSON description that results hold."""
        if isinstance(self.policy, Calibration):
            return {
                "calibration": self.policy.model,
                "sharpened_heads": len(self.policy.heads),
                "sha256": hashlib.sha256(self.policy.text().encode()).hexdigest(),
            }
        return {
            "policy": None if self.policy is None else repr(self.policy),
            "layers": None if self.layers is None else sorted(self.layers),
            "heads": None if self.heads is None else sorted(self.heads),
        }


def make_conditions(
    model: PreTrainedModel, policies: Mapping[str, Condition | Policy | Calibration | str | Path]
) -> dict[str, Condition]:
    """Return the plain condition and one for each policy, by name.

    Each is applied once, so that one that does not fit the model raises before any work.
    """
    if not policies:
        raise UserError("no policies: give at least one to compare with the plain model")
    if PLAIN in policies:
        raise UserError(f"the name {PLAIN!r} is reserved for the plain model: use another name")
    conditions = {PLAIN: Condition(None)}
    for name, policy in policies.items():
        if isinstance(policy, Path):
            policy = str(policy)
        condition = policy if isinstance(policy, Condition) else Condition(policy)
        if isinstance(condition.policy, str):
            condition = replace(condition, policy=find_calibration(model, condition.policy))
        with condition.apply(model):
            conditions[name] = condition
    return conditions
