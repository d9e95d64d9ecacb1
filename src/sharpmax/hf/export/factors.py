"""How much each head is sharpened at one length: what a checkpoint can hold."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.patch.layers import Layer, attention_layers, count_heads, count_visible
from sharpmax.hf.patch.scope import Rule, combine_rules
from sharpmax.hf.sharpen import make_rules
from sharpmax.hf.tune.calibration import Calibration, find_calibration
from sharpmax.policies import Policy, inverse_temperatures, traits

if TYPE_CHECKING:
    from jaxtyping import Float

    Factors = dict[int, Float[np.ndarray, " heads"]]
    """The factor of each head, for each layer in which one is not 1."""


@dataclass(frozen=True)
class FixedByHead:
    """Multiply the logits of each head of a layer by its own constant.

    Attributes:
        factors: The inverse temperature of each head.
    """

    factors: tuple[float, ...]
    needs_entropy: ClassVar[bool] = False
    by_head: ClassVar[bool] = True
    learned: ClassVar[bool] = False

    def __call__(self, entropy: Any, count: Any, /) -> Float[Tensor, "batch kv_heads group query"]:
        factors = torch.tensor(self.factors, dtype=entropy.dtype, device=entropy.device)
        return factors.view(*entropy.shape[1:3], 1).expand(entropy.shape)


@dataclass(frozen=True)
class Sharpening:
    """A policy or calibration, for some heads of a model, at any one length.

    Attributes:
        name: What the model card calls it.
        sha256: A hash of the calibration's file; None for a policy.
        calibration: The calibration; None for a policy.
        model: The model.
        layers: All attention layers of the model.
        rules: What holds for them.
    """

    name: str
    sha256: str | None
    calibration: Calibration | None
    model: PreTrainedModel
    layers: list[Layer]
    rules: dict[Any, tuple[Rule, ...]]

    @staticmethod
    def create(
        model: PreTrainedModel,
        policy: Policy | Calibration | str | Path,
        layers: Collection[int] | None = None,
        heads: Collection[int] | None = None,
    ) -> Sharpening:
        """Check that a policy or calibration fits a model.

        Raises:
            UserError: It does not, or it depends on more than the length.
        """
        name = policy if isinstance(policy, (str, Path)) else repr(policy)
        if isinstance(policy, (str, Path)):
            policy = find_calibration(model, str(policy))
        every_layer = attention_layers(model)
        rules = make_rules(model, every_layer, policy, layers, heads)
        digest = None
        if isinstance(policy, Calibration):
            digest = hashlib.sha256(policy.text().encode()).hexdigest()
            name = f"calibration of {policy.model}"
        elif traits(policy).needs_entropy:
            raise UserError(
                f"{policy!r} looks at the entropy of each row, which weights cannot hold: export a "
                "calibration, or a policy of the length alone such as log-length:512"
            )
        calibration = policy if isinstance(policy, Calibration) else None
        return Sharpening(str(name), digest, calibration, model, every_layer, rules)

    def at_length(self, length: int) -> Factors:
        """Return the factors of all heads for rows that see this many tokens.

        A layer with a sliding window sees at most its window.
        """
        factors = {}
        for layer in self.layers:
            if layer.module not in self.rules:
                continue
            entropy = torch.zeros(1, count_heads(layer), 1, 1, dtype=torch.float64)
            count = torch.full(entropy.shape, count_visible(layer, length), dtype=torch.int32)
            policy = combine_rules(self.rules[layer.module])
            answer = inverse_temperatures(policy, entropy, count).flatten().detach().numpy()
            if (answer != 1).any():
                factors[layer.index] = answer
        return factors

    def depends_on_length(self) -> bool:
        """Return whether any factor differs between a short and a long input."""
        short, long = self.at_length(1), self.at_length(1 << 20)
        return short.keys() != long.keys() or any(
            not np.array_equal(short[layer], long[layer]) for layer in short
        )


def fixed_rules(layers: list[Layer], factors: Factors) -> dict[Any, tuple[Rule, ...]]:
    """Return rules that hold these factors at every length."""
    return {
        layers[index].module: (Rule(FixedByHead(tuple(by_head.tolist())), None),)
        for index, by_head in factors.items()
    }
