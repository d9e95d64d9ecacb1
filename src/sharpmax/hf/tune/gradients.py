"""Refuse models whose quantised layers lose gradients, before hours of tuning.

Some quantised layers have no backward pass, and some return a result that is cut off from its
input. What flows around them, through residual connections, would still reach the heads: a wrong
gradient and no error.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.model_info import PLAIN_DTYPES, quantised_tensors
from sharpmax.hf.patch.wrappers import input_device, is_fully_sharded

TOLERANCE = 0.1
"""Largest relative error of a gradient. Layers that quantise their inputs, too, are not linear."""


def require_gradients(model: PreTrainedModel, verb: str) -> None:
    """Refuse a model through which gradients do not flow.

    `fully_shard` drops gathered weights after a module's backward pass, and the one over a context
    and its questions needs those of each module twice.

    One layer of each kind is run on a random vector. Layers that are not quantised pass.

    Args:
        model: The model.
        verb: What needs the gradients, for the error.

    Raises:
        UserError: The gradient of a layer's output by its input is missing or wrong, or the model
            is split by `fully_shard`.
    """
    if is_fully_sharded(model):
        raise UserError(
            f"{verb} needs gradients through two passes at once, which weights that fully_shard "
            "split among processes do not allow: load the model in one process, or with a device "
            "map"
        )
    checked: set[tuple[object, ...]] = set()
    for name, module in model.named_modules():
        tensors = list(quantised_tensors(module, recurse=False))
        if not tensors or isinstance(module, nn.Embedding):
            continue
        kind = (type(module), *((part, type(tensor), tensor.dtype) for part, tensor in tensors))
        if kind in checked:
            continue
        checked.add(kind)
        reason = _find_fault(module, input_device(model), _activation_dtype(model))
        if reason is not None:
            tensor = type(tensors[0][1]).__name__
            raise UserError(
                f"{verb} needs gradients, and {name}, a quantised {type(module).__name__} "
                f"({tensor}), {reason}: load the model without quantisation, or with another"
            )


def _activation_dtype(model: PreTrainedModel) -> torch.dtype:
    return model.dtype if model.dtype in PLAIN_DTYPES else torch.get_default_dtype()


def _find_fault(module: nn.Module, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return what is wrong with a layer's gradient, or None if nothing is.

    A layer f is linear but for its bias: with r = f(x) - f(0), the derivative of <r, f(x)> by x,
    times x, is |r|^2.
    """
    size = getattr(module, "in_features", None)
    if not isinstance(size, int):
        return "is of a kind whose gradient sharpmax cannot check"
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(4, size, generator=generator).to(device, dtype)
    try:
        with torch.enable_grad():
            vector.requires_grad_(True)
            output: Tensor = module(vector)
            if not output.requires_grad:
                return "gives none to its input"
            change = (output - module(torch.zeros_like(vector))).detach().double()
            (slope,) = torch.autograd.grad((change * output.double()).sum(), vector)
    except (RuntimeError, NotImplementedError) as error:
        return f"has no backward pass ({type(error).__name__})"
    power = float((change**2).sum())
    error_of_slope = abs(float((slope.double() * vector.detach().double()).sum()) - power)
    return None if error_of_slope <= TOLERANCE * power else "gives a wrong one to its input"
