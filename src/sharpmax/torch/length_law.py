"""The law of calibrations on tensors: from rates and visible tokens to inverse temperatures.

    b = clamp(1 + rate * log(n / from_tokens), low, high)   for n > from_tokens, else 1

Everything that applies a calibration calls these two functions: `sharpmax.hf` on a model of
transformers and `sharpmax.vllm` in a server. They stay on the device of their tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Num

UNIFORM = 1e-16
"""Stands for a lower bound of 0, which is no inverse temperature: all weights are equal."""


def log_excess(count: Num[Tensor, "*shape"], from_tokens: int) -> Float[Tensor, "*shape"]:
    """Return by how much log(count) exceeds log(from_tokens), in nats.

    Rows of up to `from_tokens` tokens give exactly 0, so that their inverse temperature is
    exactly 1.

    Args:
        count: The number of tokens that each row sees, as floating numbers.
        from_tokens: The number of tokens up to which nothing changes.

    Returns:
        One number per row, 0 or more.
    """
    return torch.log(count.clamp(min=1) / from_tokens).clamp(min=0)


def inverse_temperature(
    rates: Float[Tensor, "*#shape"], excess: Float[Tensor, "*#shape"], low: float, high: float
) -> Float[Tensor, "*#shape"]:
    """Return the inverse temperature of each head and row.

    Args:
        rates: The rate of each head.
        excess: What `log_excess` returns for each row, in a shape that broadcasts with `rates`.
        low: The smallest inverse temperature.
        high: The largest inverse temperature.

    Returns:
        The inverse temperatures, in the broadcast shape. They carry the gradients of the rates.
    """
    return (1 + rates * excess).clamp(max(low, UNIFORM), high)
