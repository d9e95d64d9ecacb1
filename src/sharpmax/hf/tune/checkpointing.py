"""Gradient checkpointing for a model that stays in evaluation mode."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from sharpmax._errors import UserError
from sharpmax.hf.patch.context import KeptScope

DROPOUTS = ("attention_dropout", "hidden_dropout", "resid_pdrop", "attn_pdrop", "dropout")
"""Options of configs that name a probability of dropout."""


@contextmanager
def checkpointed_layers(model: PreTrainedModel) -> Iterator[None]:
    """Compute the blocks of a model again in the backward pass instead of keeping activations.

    transformers does this in training mode only. Here only the blocks themselves are told that
    they train, not what is in them. A block that drops activations out itself would do so, so
    models with dropout are refused.

    Raises:
        UserError: The model has no blocks that support it, or has dropout.
    """
    blocks = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not blocks:
        raise UserError(
            f"{type(model).__name__} has no layers with gradient checkpointing: tune it without "
            "saving memory"
        )
    config = model.config.get_text_config()
    used = [name for name in DROPOUTS if getattr(config, name, 0.0)]
    if used:
        raise UserError(
            f"{type(model).__name__} has {used[0]}={getattr(config, used[0])}: set it to 0 to tune "
            "with gradient checkpointing"
        )
    changed = ("training", "gradient_checkpointing", "_gradient_checkpointing_func")
    before = [
        (block, {key: vars(block)[key] for key in changed if key in vars(block)})
        for block in blocks
    ]
    try:
        for block in blocks:
            block.training = block.gradient_checkpointing = True
            vars(block)["_gradient_checkpointing_func"] = KeptScope(
                functools.partial(checkpoint, use_reentrant=False)
            )
        yield
    finally:
        for block, values in before:
            for key in changed:
                vars(block).pop(key, None)
            vars(block).update(values)
