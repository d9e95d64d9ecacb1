"""Weights as 8-bit integers with a scale per row, as torchao has them, for tests without torchao."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Int8Weight(torch.Tensor):
    """A weight-only quantised matrix.

    Attributes:
        integers: The rounded rows.
        scale: What each row was divided by.
        cut: Whether its product has no backward pass, as where the input is quantised too.
    """

    integers: Tensor
    scale: Tensor
    cut: bool

    @staticmethod
    def __new__(cls, integers: Tensor, scale: Tensor, cut: bool = False) -> Int8Weight:
        weight = torch.Tensor._make_wrapper_subclass(
            cls, integers.shape, dtype=scale.dtype, device=integers.device
        )
        weight.integers, weight.scale, weight.cut = integers, scale, cut
        return weight

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        return ["integers", "scale"], {"cut": self.cut}

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, *_: Any) -> Int8Weight:
        return cls(parts["integers"], parts["scale"], context["cut"])

    def dequantise(self) -> Tensor:
        return self.integers.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any, options: Any = None) -> Any:
        if function is functional.linear:
            vectors, weight, *bias = arguments
            if weight.cut:
                vectors = vectors.detach()
            return functional.linear(vectors, weight.dequantise(), *bias)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **(options or {}))

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, arguments: Any, options: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            weight = arguments[0]
            return cls(weight.integers, weight.scale, weight.cut)
        raise NotImplementedError(f"{cls.__name__} does not implement {function}")


def quantise(model: Any, *, cut: bool = False) -> Any:
    """Quantise all linear layers but the output layer, in place; return the model."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            weight = module.weight.detach()
            scale = weight.abs().amax(1, keepdim=True) / 127
            integers = (weight / scale).round().to(torch.int8)
            quantised = Int8Weight(integers, scale, cut)
            module.weight = nn.Parameter(quantised, requires_grad=False)
    return model


def dequantise(model: Any) -> Any:
    """Give the linear layers of a quantised model plain weights of the same values, in place."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and isinstance(module.weight, Int8Weight):
            module.weight = nn.Parameter(module.weight.dequantise())
    return model
