"""What tuning learns, and how it acts on a model: by default one rate per head."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax.hf.patch.context import patched_attention
from sharpmax.hf.patch.layers import attention_layers
from sharpmax.hf.patch.scope import PLAIN, Rule
from sharpmax.hf.patch.wrappers import input_device
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibration import ByRate, architecture_of
from sharpmax.results.calibration import Law


class Learnable(Protocol):
    """Tensors to learn while the weights of a model stay as they are.

    Attributes:
        parameters: The tensors. They keep their order and shapes.
        changed_from: The first position of an input at which the model's output can change.
    """

    parameters: list[Tensor]
    changed_from: int

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint must agree on, as JSON values."""
        ...

    def applied(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters act on the model."""
        ...

    def plain(self) -> AbstractContextManager[Any]:
        """Return a context, inside that of `applied`, in which the model is as it was."""
        ...


class HeadRates:
    """One rate per head, with the law of calibrations.

    Args:
        model: The model.
        from_tokens: The number of tokens up to which nothing changes.
        law: The bounds of the inverse temperature.
    """

    def __init__(self, model: PreTrainedModel, from_tokens: int, law: Law) -> None:
        self.model, self.changed_from, self.law = model, from_tokens, law
        device = input_device(model)
        self.parameters = [
            torch.zeros(heads, device=device, requires_grad=True)
            for heads in architecture_of(model).heads
        ]

    def describe(self) -> dict[str, Any]:
        return {}  # the settings of a tuning say it all

    def policy(self, layer: int) -> Any:
        """Return the policy of a layer, which carries gradients."""
        return ByRate(self.parameters[layer], self.changed_from, self.law)

    def applied(self) -> AbstractContextManager[None]:
        layers = attention_layers(self.model)
        rules = {layer.module: (Rule(self.policy(layer.index), None),) for layer in layers}
        return patched_attention(self.model, layers, rules)

    def plain(self) -> AbstractContextManager[Any]:
        return sharpen(self.model, PLAIN)
