"""Calibrations applied to models: the policy of a layer, and whether a file fits a model.

The file itself, which needs no framework, is `sharpmax.results.Calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax import results
from sharpmax._errors import UserError
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.patch.layers import attention_layers, count_heads
from sharpmax.results.calibration import Architecture, Law
from sharpmax.torch.length_law import inverse_temperature, log_excess

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
        excess = log_excess(count.to(entropy.dtype), self.from_tokens)
        by_head = rates.view(kv_heads, group, 1)
        return inverse_temperature(by_head, excess, self.law.low, self.law.high)


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
        self.architecture.require(architecture_of(model), self.model, type(model).__name__)


TUNED = "tuned"
"""The name of whichever shipped calibration has the weights of the model."""


def shipped_calibrations() -> dict[str, Calibration]:
    """Return the calibrations that come with the package, by the name of their model.

    Returns:
        Calibrations that `sharpmax tune` made, by the names of the catalogue, such as `smollm2`.

    Examples:
        >>> sorted(shf.shipped_calibrations())
        ['smollm2']
    """
    folder = resources.files("sharpmax.hf.tune") / "calibrations"
    files = [Path(str(file)) for file in folder.iterdir() if file.name.endswith(".json")]
    return {file.stem: Calibration.load(file) for file in sorted(files)}


def find_calibration(model: PreTrainedModel, name: str) -> Calibration:
    """Return a calibration by the path of its file, its shipped name, or `tuned`.

    Raises:
        UserError: There is none of this name, or it was made for other weights.
    """
    if name.endswith(".json"):
        return Calibration.load(name)
    shipped = shipped_calibrations()
    weights = weights_fingerprint(model)
    names = ", ".join(shipped)
    if name == TUNED:
        for calibration in shipped.values():
            if calibration.weights == weights:
                return calibration
        raise UserError(
            f"no tuned calibration comes with sharpmax for these weights, only for {names} in "
            "float32: run `sharpmax tune` on this model and give the file that it writes"
        )
    if name not in shipped:
        raise UserError(
            f"unknown calibration {name!r}: expected the path of a .json file, {TUNED!r}, or one "
            f"that comes with sharpmax: {names}"
        )
    if shipped[name].weights != weights:
        raise UserError(
            f"the calibration {name!r} was made for {shipped[name].model} in float32, and this "
            "model has other weights: run `sharpmax tune` on it and give the file that it writes"
        )
    return shipped[name]


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Return the shape of a model's attention layers."""
    layers = attention_layers(model)
    heads = tuple(count_heads(layer) for layer in layers)
    return Architecture(model_type=model.config.model_type, layers=len(layers), heads=heads)
