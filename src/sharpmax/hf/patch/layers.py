"""Find the attention layers of a model, select some of them, and count their heads.

A layer whose attention goes through transformers' `AttentionInterface` can be measured and
sharpened. Some models call another kernel directly. They would silently stay as they are, so they
are refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.policies import Policy


@dataclass(frozen=True)
class Layer:
    """One attention layer, numbered in the order in which the model holds them.

    In an encoder-decoder the encoder's layers come first, and a decoder block has two: self and
    cross attention.

    Attributes:
        index: The number.
        name: The name of the module in the model.
        module: The module.
    """

    index: int
    name: str
    module: nn.Module


def attention_layers(model: PreTrainedModel) -> list[Layer]:
    """Return all attention layers of a model.

    Raises:
        UserError: The model has no attention layers, or some that cannot be patched.
    """
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"expected a transformers model (PreTrainedModel), got {type(model).__name__}"
        )
    modules = list(model.named_modules())
    patchable = [(name, module) for name, module in modules if _uses_interface(module)]
    for name, module in modules:
        kind = type(module).__name__
        # A module that is such a layer, holds one, or is part of one is fine.
        related = any(
            f"{name}.".startswith(f"{layer}.") or layer.startswith(f"{name}.")
            for layer, _ in patchable
        )
        if "Attention" in kind and not related and list(module.parameters()):
            raise UserError(
                f"{type(model).__name__}: {kind} at {name} does not call transformers' "
                "AttentionInterface, so its heads would silently stay as they are; this model is "
                "not supported"
            )
    if not patchable:
        raise UserError(
            f"{type(model).__name__}: none of its layers calls transformers' AttentionInterface, "
            "so its attention cannot be measured or sharpened from outside"
        )
    return [Layer(index, name, module) for index, (name, module) in enumerate(patchable)]


def _uses_interface(module: nn.Module) -> bool:
    """Return whether a module's forward looks the attention function up in the interface."""
    forward: Any = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def select_layers(layers: list[Layer], numbers: Collection[int] | None) -> list[Layer]:
    """Return the layers with these numbers, negative ones counted from the end; all if None."""
    if numbers is None:
        return layers
    return [layers[number] for number in check_numbers(numbers, len(layers), "layers")]


def check_numbers(numbers: Collection[int], size: int, what: str) -> list[int]:
    """Return numbers of layers or heads in order, each once, negative ones counted from the end.

    Raises:
        UserError: A number is not among the `size` that exist, or no number was given.
    """
    if isinstance(numbers, int) or not numbers:
        raise UserError(
            f"{what}={numbers!r}: expected several numbers such as [0, 3], or None for all"
        )
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not -size <= number < size:
            raise UserError(f"{what}: no {number!r} among {size}, which are 0 to {size - 1}")
    return sorted({number % size for number in numbers})


def count_heads(layer: Layer) -> int:
    """Return how many query heads a layer has, on all processes together.

    Raises:
        UserError: Neither the layer nor its config says so.
    """
    return count_module_heads(layer.module)


def count_module_heads(module: nn.Module) -> int:
    """Return the number of query heads of an attention module; see `count_heads`."""
    for holder, name in (
        (module, "num_heads"),
        (module, "num_attention_heads"),
        (module, "n_heads"),
        (getattr(module, "config", None), "num_attention_heads"),
    ):
        heads = getattr(holder, name, None)
        if isinstance(heads, int):
            return heads
    raise UserError(f"{type(module).__name__} does not say how many heads it has")


def bind_policy(policy: Policy, module: nn.Module) -> Policy:
    """Return a policy for the heads of an attention module.

    Only a policy that depends on the size of a head, such as `InfoScale`, differs by module.

    Raises:
        UserError: The policy needs the head size, and neither the module nor its config says it.
    """
    with_head_size = getattr(policy, "with_head_size", None)
    return policy if with_head_size is None else with_head_size(_read_head_size(module))


def _read_head_size(module: nn.Module) -> int:
    """Return the number of components of a query of an attention module."""
    config = getattr(module, "config", None)
    for holder, name in (
        (module, "qk_head_dim"),
        (module, "head_dim"),
        (module, "head_size"),
        (module, "attention_head_size"),
        (module, "key_value_proj_dim"),
        (config, "head_dim"),
    ):
        size = getattr(holder, name, None)
        if isinstance(size, int):
            return size
    raise UserError(
        f"{type(module).__name__} does not say how large its heads are: give the policy its "
        "head_size"
    )


def count_visible(layer: Layer, length: int) -> int:
    """Return how many tokens the last token of an input of this length sees in a layer."""
    module: Any = layer.module
    config = getattr(module, "config", None)
    window = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    if window is None:
        return length
    causal = getattr(module, "is_causal", True)
    return min(length, int(window) if causal else 2 * int(window) - 1)


def find_configs(model: PreTrainedModel) -> list[Any]:
    """Return every config that a module of the model holds, and the configs inside them."""
    configs: dict[int, Any] = {}
    waiting = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if config is None or id(config) in configs or not hasattr(config, "sub_configs"):
            continue
        configs[id(config)] = config
        waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(configs.values())


@contextmanager
def attention_implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Use another of transformers' own attention implementations inside the block."""
    before = [(config, config._attn_implementation_internal) for config in find_configs(model)]
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """Put the model in evaluation mode; each module returns to its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
