"""Lead a model's attention through the rules of its layers, and put it back as it was.

Blocks may be nested, may end in any order, and may hold models that share configs or layers (a
model and its own `.model`, two models made from one config): each config and each layer is put back
when the last block that holds it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedModel

from sharpmax.hf.patch import attention, registration
from sharpmax.hf.patch.attention import Rule
from sharpmax.hf.patch.layers import Layer


@dataclass
class _Held:
    """A config inside some block."""

    config: Any
    implementation: str | None
    """What it was before the first of them."""
    blocks: int = 0


_CONFIGS: dict[int, _Held] = {}
_LAYERS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""In how many blocks a layer is."""


@dataclass
class Block:
    """What happened to a model since a block began."""

    layers: list[Layer]
    passes: int = 0
    """How often the model ran."""
    calls_before: int = 0

    @property
    def calls(self) -> int:
        """How often one of its layers asked for attention."""
        return _calls(self.layers) - self.calls_before


@contextmanager
def ruled(model: PreTrainedModel, layers: list[Layer]) -> Iterator[Block]:
    """The model with its attention led through the rules of its layers."""
    registration.register_rules()
    configs = [config for config, _ in implementations(model)]
    block = Block(layers, calls_before=_calls(layers))

    def count(*_: Any) -> None:
        block.passes += 1

    hook = model.register_forward_hook(count)
    try:
        _hold(configs, layers)
        yield block
    finally:
        hook.remove()
        _release(configs, layers)


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """The model in evaluation mode; then each of its modules in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def implemented(model: PreTrainedModel, name: str) -> Iterator[None]:
    """The model with another attention implementation, one that transformers has itself."""
    before = implementations(model)
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def implementations(model: PreTrainedModel) -> list[tuple[Any, str | None]]:
    """Every config that a module of the model holds, with the configs inside them, and the
    attention implementation that each names.
    """
    found: dict[int, Any] = {}
    waiting = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if config is None or id(config) in found or not hasattr(config, "sub_configs"):
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in config.sub_configs]
    return [(config, config._attn_implementation_internal) for config in found.values()]


def _hold(configs: list[Any], layers: list[Layer]) -> None:
    for config in configs:
        held = _CONFIGS.setdefault(id(config), _Held(config, config._attn_implementation_internal))
        held.blocks += 1
        # As `set_attn_implementation` sets it, but on every config that a module holds, and without
        # its fall-back to a logged warning: `attention_layers` has refused what does not follow.
        config._attn_implementation_internal = registration.RULED
    # A model that is sharpened altogether by its `attn_implementation` stays so where no rule says
    # otherwise.
    was_sharp = any(_CONFIGS[id(config)].implementation == registration.NAME for config in configs)
    first = (Rule(registration.registered_policy(), None),) if was_sharp else ()
    for layer in layers:
        attention.RULES.setdefault(layer.module, first)
        _LAYERS[layer.module] = _LAYERS.get(layer.module, 0) + 1


def _release(configs: list[Any], layers: list[Layer]) -> None:
    for config in configs:
        held = _CONFIGS[id(config)]
        held.blocks -= 1
        if not held.blocks:
            config._attn_implementation_internal = held.implementation
            del _CONFIGS[id(config)]
    for layer in layers:
        _LAYERS[layer.module] -= 1
        if not _LAYERS[layer.module]:
            del _LAYERS[layer.module]
            attention.RULES.pop(layer.module, None)
            attention.CALLS.pop(layer.module, None)


def _calls(layers: list[Layer]) -> int:
    return sum(attention.CALLS.get(layer.module, 0) for layer in layers)
