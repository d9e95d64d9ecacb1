"""Models whose weights are on several devices, in CPU memory or on disk.

accelerate puts a hook on each module of such a model. The hook moves the inputs to the device that
computes the module, and brings offloaded weights there for as long as the module runs. Between
passes an offloaded parameter has no values: its device is "meta".

torch's `fully_shard` (FSDP2) splits the weights among processes, and gathers those of a module for
as long as it runs. All processes must run the same passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # torch 2.5
    from torch.distributed._composable.fsdp import FSDPModule  # type: ignore[attr-defined]


def input_device(model: PreTrainedModel) -> torch.device:
    """Return the device for the model's inputs: `model.device`, unless its weights are offloaded.

    Raises:
        UserError: The weights have no values, and nothing says where they are.
    """
    if model.device.type != "meta":
        return model.device
    for module in model.modules():
        for hook in _hooks(module):
            device = getattr(hook, "execution_device", None)
            if device is not None:
                return torch.device(device)
    raise UserError(f"{type(model).__name__} has no weights (device meta): load them first")


def is_dispatched(model: nn.Module) -> bool:
    """Return whether accelerate moves the inputs or the weights of a model's modules."""
    return any(
        hasattr(hook, "execution_device") for part in model.modules() for hook in _hooks(part)
    )


def is_fully_sharded(model: nn.Module) -> bool:
    """Return whether `fully_shard` was called on a model or on modules of it."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def class_name(model: nn.Module) -> str:
    """Return the name of a model's class, without what `fully_shard` puts in front of it."""
    kind = type(model)
    return (kind.__bases__[-1] if isinstance(model, FSDPModule) else kind).__name__


def describe_placement(model: PreTrainedModel) -> str | None:
    """Return a note on where the weights of a model are, or None if they are on one device."""
    if is_fully_sharded(model):
        return f"the weights were split among {dist.get_world_size()} processes (fully_shard)"
    devices = {str(parameter.device) for parameter in model.parameters()}
    offloaded = "meta" in devices
    devices.discard("meta")
    if not offloaded and len(devices) < 2:
        return None
    # Weights that are offloaded to CPU memory and to disk cannot always be told apart.
    named = getattr(model, "hf_device_map", None) or {}
    places = devices | {_device_name(device) for device in named.values()}
    where = ", ".join(sorted(places)) or "CPU memory or disk"
    if not offloaded:
        return f"the model was spread over several devices: {where}"
    return (
        f"weights were offloaded ({where}), and each was brought to {input_device(model).type} "
        "when it was needed"
        if len(devices) < 2
        else f"the model was spread over several devices, and weights were offloaded: {where}"
    )


def _device_name(device: Any) -> str:
    return "disk" if device == "disk" else str(torch.device(device))


def unique_parameters(model: PreTrainedModel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model by name, tied ones once.

    Where accelerate has a model, tied weights are no longer the same object: offloading and copies
    for other devices make new ones.
    """
    tied = getattr(model, "all_tied_weights_keys", None) if is_dispatched(model) else None
    seen: set[str] = set()
    for name, parameter in model.named_parameters():
        source = (tied or {}).get(name, name)
        if source not in seen:
            seen.add(source)
            yield name, parameter


def read_weight(model: nn.Module, name: str, parameter: Tensor) -> Tensor:
    """Return a parameter with its values, also if it is offloaded.

    Args:
        model: The model.
        name: The name of the parameter in it.
        parameter: The parameter.

    Raises:
        UserError: It has no values, and no hook of accelerate says where they are.
    """
    if not parameter.is_meta:
        return parameter
    *path, last = name.split(".")
    for depth in range(len(path), -1, -1):
        holder = model.get_submodule(".".join(path[:depth]))
        key = ".".join([*path[depth:], last])
        for hook in _hooks(holder):
            weights = getattr(hook, "weights_map", None)
            if getattr(hook, "offload", False) and weights is not None:
                try:
                    return weights[key]
                except KeyError:  # of a module below, which has a hook of its own
                    continue
    raise UserError(f"{name} has no values (device meta): load the weights first")


def offloaded_parameter(model: nn.Module) -> str | None:
    """Return the name of a parameter that is offloaded, or None if there is none."""
    return next((name for name, value in model.named_parameters() if value.is_meta), None)


def _hooks(module: nn.Module) -> list[Any]:
    hook = getattr(module, "_hf_hook", None)
    if hook is None:
        return []
    return list(getattr(hook, "hooks", [hook]))  # several are in one SequentialHook
