"""Find out whether and how the weights of a model are quantised."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

PLAIN_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))


def quantised_tensors(module: nn.Module, *, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield the quantised parameters of a module, and the buffers that hold quantised weights.

    torchao's parameters are tensor subclasses, those of bitsandbytes have integer dtypes, and GPTQ
    and AWQ keep integers in buffers. A model whose weights were dequantised on loading has none.
    """
    for name, parameter in module.named_parameters(recurse=recurse):
        subclass = is_traceable_wrapper_subclass(parameter) and not isinstance(parameter, DTensor)
        if subclass or parameter.dtype not in PLAIN_DTYPES:
            yield name, parameter
    yield from quantised_buffers(module, recurse=recurse)


def quantised_buffers(module: nn.Module, *, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of a module that hold quantised weights, as those of GPTQ and AWQ do."""
    for name, buffer in module.named_buffers(recurse=recurse):
        integers = not (buffer.is_floating_point() or buffer.is_complex())
        # Positions and the like are vectors, or have torch's usual dtype of integers.
        if integers and buffer.dtype not in (torch.bool, torch.int64) and buffer.ndim > 1:
            yield name, buffer


def describe_quantisation(model: PreTrainedModel) -> str | None:
    """Return how the weights of a model are quantised, such as "torchao"; None if they are not."""
    tensor = next((tensor for _, tensor in quantised_tensors(model)), None)
    if tensor is None:
        return None
    config = getattr(model.config, "quantization_config", None)
    method = (
        config.get("quant_method")
        if isinstance(config, dict)
        else getattr(config, "quant_method", None)
    )
    if method is not None:
        return str(getattr(method, "value", method))
    dtype = str(tensor.dtype).removeprefix("torch.")
    return type(tensor).__name__ if is_traceable_wrapper_subclass(tensor) else dtype
