"""Calibrations applied to models: the policy of a layer, and whether a file fits a model.

The file itself, which needs no framework, is `sharpmax.results.Calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax import results
from sharpmax._errors import UserError
from sharpmax.hf.patch.layers import attention_layers, count_heads
from sharpmax.results.calibration import Architecture, Law

if TYPE_CHECKING:
    from jaxtyping import Float


DEFAULT_LAW = Law()


@dataclass(frozen=True)
class ByRate:
    """Sharpen or soften each head of a layer by its own rate.

        b = clamp(1 + rate * log(count / from_tokens), low, high)   for count > from_tokens, else 1

    Attributes:
        rates: The rate of each head; 0 leaves a head as it is. A tensor carries gradients.
        from_tokens: The number of tokens up to which nothing changes.
        law: The bounds.
    """

    rates: tuple[float, ...] | Float[Tensor, " heads"]
    from_tokens: int
    law: Law = DEFAULT_LAW
    needs_entropy: ClassVar[bool] = False
    by_head: ClassVar[bool] = True

    @property
    def plain_up_to(self) -> int:
        return self.from_tokens

    @property
    def learned(self) -> bool:
        return isinstance(self.rates, Tensor)

    def __call__(self, entropy: Any, count: Any, /) -> Float[Tensor, "batch kv_heads group query"]:
        _, kv_heads, group, _ = entropy.shape
        rates = torch.as_tensor(self.rates, dtype=entropy.dtype, device=entropy.device)
        excess = torch.log(count.to(entropy.dtype).clamp(min=1) / self.from_tokens).clamp(min=0)
        factor = 1 + rates.view(kv_heads, group, 1) * excess
        return factor.clamp(self.law.low, self.law.high)


class Calibration(results.Calibration):
    """Say how much to sharpen or soften each head of a model.

    `sharpmax.results.Calibration` documents the fields.
    """

    def policy(self, layer: int) -> ByRate:
        """Return the policy of a layer that has a changed head.

        Args:
            layer: The number of the attention layer.
        """
        return ByRate(self.rates()[layer], self.from_tokens, self.law)

    def require_fit(self, model: PreTrainedModel) -> None:
        """Refuse a model of another architecture, with the reason.

        Args:
            model: The model to sharpen.

        Raises:
            UserError: The model has another type, or another number of layers or heads.
        """
        given, expected = architecture_of(model), self.architecture
        for what, wanted, found in (
            ("model type", expected.model_type, given.model_type),
            ("attention layers", expected.layers, given.layers),
            ("heads", expected.heads, given.heads),
        ):
            if wanted != found:
                raise UserError(
                    f"this calibration is for {self.model}, {what} {_short(wanted)}, and "
                    f"{type(model).__name__} has {_short(found)}: calibrate this model itself"
                )


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Return the shape of a model's attention layers."""
    layers = attention_layers(model)
    heads = tuple(count_heads(layer) for layer in layers)
    return Architecture(model_type=model.config.model_type, layers=len(layers), heads=heads)


def _short(value: Any) -> str:
    """Write a tuple of equal numbers as one of them."""
    if isinstance(value, tuple):
        return f"{value[0]} a layer" if len(set(value)) == 1 else str(list(value))
    return repr(value)
