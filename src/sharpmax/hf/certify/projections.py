"""The rows of an attention layer's projections that belong to each of its heads, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sharpmax._errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float

    Rows = tuple[Float[np.ndarray, "heads dim model"], Float[np.ndarray, "heads dim"]]
    """A head's rows of a projection, and its bias."""


def numbers(tensor: Tensor, name: str) -> Float[np.ndarray, "..."]:
    """A weight in float64."""
    if tensor.is_meta:
        raise UserError(f"{name} has no values (device meta): load the weights first")
    found = tensor.detach().double().cpu().numpy()
    if not np.isfinite(found).all():
        raise UserError(f"{name} holds NaN or infinity: no bound follows from it")
    return found


def affine(owner: nn.Module, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(weight [out, in], bias [out]) of a projection. An adapter or packed weights in its place
    would also answer to `.weight`, with something else.
    """
    module: Any = getattr(owner, name)
    if type(module) not in (nn.Linear, Conv1D):
        raise UserError(
            f"{type(owner).__name__}.{name} is {type(module).__name__}, not a plain Linear: merge "
            "adapters into the weights and dequantise them, then certify"
        )
    weight = numbers(module.weight, f"{name}.weight")
    weight = weight.T if type(module) is Conv1D else weight
    bias = np.zeros(len(weight)) if module.bias is None else numbers(module.bias, f"{name}.bias")
    return weight, bias


def rows(weight: np.ndarray, bias: np.ndarray, heads: int) -> Rows:
    return weight.reshape(heads, -1, weight.shape[1]), bias.reshape(heads, -1)


def grouped(rows: Rows, heads: int) -> Rows:
    """The rows of the key head that each query head meets: neighbours share one."""
    group = heads // len(rows[0])
    return np.repeat(rows[0], group, axis=0), np.repeat(rows[1], group, axis=0)
