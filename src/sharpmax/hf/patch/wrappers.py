"""Find the transformers model inside what other packages wrap around it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import Pipeline, PreTrainedModel

from sharpmax._errors import UserError


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
