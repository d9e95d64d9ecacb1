"""What other packages wrap around a model, and how they store its weights.

PEFT, torch and others put modules around a transformers model. Others change the model itself:

- accelerate puts a hook on each module of a model that is on several devices or offloaded. The hook
  moves the inputs to the device that computes the module, and brings offloaded weights there while
  it runs. Between passes an offloaded parameter has no values: its device is "meta".
- torch's `fully_shard` (FSDP2) splits the weights among processes, and gathers those of a module
  while it runs. All processes must run the same passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import Pipeline, PreTrainedModel

from sharpmax._errors import UserError

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # torch 2.5
    from torch.distributed._composable.fsdp import FSDPModule  # type: ignore[attr-defined]


def unwrap_model(model: Any, *, runs: bool = True) -> PreTrainedModel:
    """Return the transformers model inside a wrapper.

    `torch.compile`d modules, DistributedDataParallel and PEFT models are supported. A model that
    accelerate dispatches, or whose weights are quantised, needs no unwrapping.

    Args:
        model: A transformers model or a wrapper of one.
        runs: Whether sharpmax will run the model itself, and not the user through the wrapper.

    Raises:
        UserError: There is no transformers model, or running it without its wrapper would be wrong.
    """
    while not isinstance(model, PreTrainedModel):
        if isinstance(model, OptimizedModule):
            model = model._orig_mod
        elif isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(model, DataParallel):
            raise UserError(
                "torch.nn.DataParallel runs copies of a model, which sharpmax does not reach: use "
                "DistributedDataParallel, or one device"
            )
        elif isinstance(model, FullyShardedDataParallel):
            if runs:
                raise UserError(
                    "FullyShardedDataParallel cannot be run without its wrapper: use a model on "
                    "which fully_shard was called, or sharpen it and run the wrapper yourself"
                )
            model = model.module
        elif isinstance(model, nn.Module) and type(model).__module__.startswith("peft."):
            model = _unwrap_peft(model, runs)
        elif isinstance(model, Pipeline):
            raise UserError("expected a transformers model, got a pipeline: give pipeline.model")
        else:
            raise UserError(
                f"expected a transformers model (PreTrainedModel), got {type(model).__name__}"
            )
    return model


def _unwrap_peft(model: Any, runs: bool) -> Any:
    """Return the base model of a PEFT model, in which adapters such as LoRA are active."""
    if runs and getattr(model, "active_peft_config", None) is not None:
        kind = model.active_peft_config
        if kind.is_prompt_learning:
            raise UserError(
                f"{kind.peft_type.value} adds tokens outside the model, which would be missing "
                "here: use an adapter inside the model such as LoRA, or sharpen it and run it "
                "yourself"
            )
    return model.get_base_model()


# Weights on several devices, offloaded, or split among processes.


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


class Placement(NamedTuple):
    """Where a model is, as results say it.

    Attributes:
        architecture: The name of its class, without what `fully_shard` puts in front of it.
        parameters: How many numbers its parameters hold, tied ones counted once.
        device: The type of the device for its inputs.
        note: Where its weights are, or None if they are on one device.
    """

    architecture: str
    parameters: int
    device: str
    note: str | None


def describe_placement(model: PreTrainedModel) -> Placement:
    """Return where a model is, as results say it."""
    kind = type(model)
    return Placement(
        architecture=(kind.__bases__[-1] if isinstance(model, FSDPModule) else kind).__name__,
        parameters=count_parameters(model),
        device=input_device(model).type,
        note=_placement_note(model),
    )


def _placement_note(model: PreTrainedModel) -> str | None:
    if is_fully_sharded(model):
        return f"the weights were split among {dist.get_world_size()} processes (fully_shard)"
    devices = {str(parameter.device) for parameter in model.parameters()}
    offloaded = "meta" in devices
    devices.discard("meta")
    if not offloaded and len(devices) < 2:
        return None
    # Weights that are offloaded to CPU memory and to disk cannot always be told apart.
    places = getattr(model, "hf_device_map", None) or {}
    devices |= {_device_name(device) for device in places.values()}
    where = ", ".join(sorted(devices)) or "CPU memory or disk"
    spread = f"the weights were spread over {where}"
    return f"{spread}, and brought to a device when they were needed" if offloaded else spread


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


def count_parameters(model: PreTrainedModel) -> int:
    """Return how many numbers the parameters of a model hold."""
    return sum(parameter.numel() for _, parameter in unique_parameters(model))


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
