"""Ways of sharpening a model, to be compared with leaving it as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import Policy

PLAIN = "plain"
"""The model as it is."""


@dataclass(frozen=True)
class Arm:
    """A policy in some layers and heads, all if None; or a calibration, which says where."""

    policy: Policy | Calibration | None
    """None: leave the model as it is."""
    layers: Collection[int] | None = None
    heads: Collection[int] | None = None

    def applied(self, model: PreTrainedModel) -> AbstractContextManager[Any]:
        if self.policy is None:
            return nullcontext()
        return sharpen(model, self.policy, layers=self.layers, heads=self.heads)

    def described(self) -> dict[str, Any]:
        """As results name it."""
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


def arms_of(
    model: PreTrainedModel, policies: Mapping[str, Arm | Policy | Calibration | str | Path]
) -> dict[str, Arm]:
    """The model as it is, and each of these, checked against the model before any work."""
    if not policies:
        raise UserError("no policies: give at least one to compare with the model as it is")
    if PLAIN in policies:
        raise UserError(f"{PLAIN!r} is the model as it is and always there: choose another name")
    arms = {PLAIN: Arm(None)}
    for name, policy in policies.items():
        if isinstance(policy, (str, Path)):
            policy = Calibration.load(policy)
        arms[name] = policy if isinstance(policy, Arm) else Arm(policy)
        with arms[name].applied(model):
            pass
    return arms
