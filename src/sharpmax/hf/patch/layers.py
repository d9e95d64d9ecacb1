"""Find the attention layers of a model, patch them, and check that patching changes nothing.

A layer whose attention goes through transformers' `AttentionInterface` can be measured and
sharpened. Some models call another kernel directly. They would silently stay as they are, so they
are refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sharpmax._errors import UserError
from sharpmax.hf.patch.attention import (
    IMPLEMENTATION,
    LAYER_STATES,
    PATCHED_IMPLEMENTATION,
    LayerState,
    Observer,
    Patch,
    Rule,
    register_patched,
    registered_policy,
)

TESTED_MODEL_TYPES = frozenset(
    (
        "bert",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "llama",
        "mistral",
        "modernbert",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "t5",
        "vit",
        "whisper",
    )
)
"""`config.model_type` of the families that the tests compare with eager attention, with padding on
both sides, caches and `generate`. Other models are compared when they are first used."""


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
    """Return how many query heads a layer has.

    Raises:
        UserError: Neither the layer nor its config says so.
    """
    module = layer.module
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


@contextmanager
def patched_attention(model: PreTrainedModel, layers: list[Layer]) -> Iterator[Patch]:
    """Let the attention of a model follow the rules of its layers inside the block.

    Blocks may be nested, may end in any order, and may hold models that share configs or layers (a
    model and its own `.model`, two models made from one config). Each config and each layer is put
    back when the last block that holds it ends.

    Args:
        model: The model.
        layers: All its attention layers.

    Yields:
        Counts of what has run inside the block.
    """
    register_patched()
    patch = Patch([(config, _implementation_before(config)) for config in find_configs(model)])

    def count_pass(*_: Any) -> None:
        patch.forward_passes += 1

    hook = model.register_forward_hook(count_pass)
    # A model that its `attn_implementation` sharpens stays sharpened where no rule says otherwise.
    registered = any(implementation == IMPLEMENTATION for _, implementation in patch.configs)
    first_rules = (Rule(registered_policy(), None),) if registered else ()
    implementations = {id(config): implementation for config, implementation in patch.configs}
    try:
        for config, _ in patch.configs:
            # As `set_attn_implementation` sets it, but on every config that a module holds, and
            # without its fall-back to a logged warning.
            config._attn_implementation_internal = PATCHED_IMPLEMENTATION
        for layer in layers:
            state = LAYER_STATES.setdefault(layer.module, LayerState())
            if not state.patches:
                state.rules = first_rules
                used = implementations.get(id(getattr(layer.module, "config", None)))
                state.sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"] if used == "sdpa" else None
            state.patches.append(patch)
        yield patch
    finally:
        hook.remove()
        _remove(patch, layers)


def _remove(patch: Patch, layers: list[Layer]) -> None:
    """Put back the layers and configs that no other patch holds."""
    for layer in layers:
        state = LAYER_STATES[layer.module]
        state.patches.remove(patch)
        if not state.patches:
            state.rules, state.sdpa = (), None
            if not state.equals_eager:
                del LAYER_STATES[layer.module]
    for config, implementation in patch.configs:
        if not any(config is held for held, _ in _held_configs()):
            config._attn_implementation_internal = implementation


def _held_configs() -> list[tuple[Any, str | None]]:
    """Return the configs of all patches, each with the implementation that it named before."""
    patches = {id(patch): patch for state in LAYER_STATES.values() for patch in state.patches}
    return [held for patch in patches.values() for held in patch.configs]


def _implementation_before(config: Any) -> str | None:
    """Return the attention implementation that a config named before any patch."""
    before: dict[int, str | None] = {id(held): name for held, name in _held_configs()}
    return before.get(id(config), config._attn_implementation_internal)


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
def observed_layers(
    layers: list[Layer], make_observer: Callable[[Layer], Observer]
) -> Iterator[None]:
    """Let observers compute the attention of patched layers inside the block.

    Args:
        layers: Layers of a model that is inside `patched_attention`.
        make_observer: Makes the observer of a layer.
    """
    try:
        for layer in layers:
            LAYER_STATES[layer.module].observer = make_observer(layer)
        yield
    finally:
        for layer in layers:
            LAYER_STATES[layer.module].observer = None


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


def require_support(model: PreTrainedModel) -> None:
    """Refuse a model whose answers would change by patching alone.

    Tested families pass. Any other model is compared with its own eager attention on a few random
    tokens, once.

    Raises:
        UserError: The answers differ, or the comparison is impossible. Names the architecture.
    """
    # With this option eager attention stays causal in Gemma and Gemma 2, and others do not.
    unusual = getattr(model.config, "use_bidirectional_attention", None)
    if model.config.model_type in TESTED_MODEL_TYPES and not unusual:
        return
    layers = attention_layers(model)
    if all(LAYER_STATES.get(layer.module, LayerState()).equals_eager for layer in layers):
        return
    reason = find_difference(model)
    if reason is not None:
        raise UserError(
            f"{type(model).__name__} ({model.config.model_type}) is not among the tested "
            f"architectures, and {reason}: not supported"
        )
    for layer in layers:
        LAYER_STATES.setdefault(layer.module, LayerState()).equals_eager = True


def find_difference(model: PreTrainedModel) -> str | None:
    """Return why patching would change this model's answers, or None if it does not.

    Compares plain attention with eager attention on a batch without padding, for which there may
    be no mask at all, and on one with padding.
    """
    try:
        vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
        if model.main_input_name != "input_ids" or vocabulary is None:
            return f"it reads {model.main_input_name}, which a check by tokens cannot make up"
        with evaluation_mode(model):
            return _compare(model, vocabulary, 0) or _compare(model, vocabulary, 3)
    except NotImplementedError as error:
        return f"its attention asks for something that is not supported ({error})"
    except Exception as error:
        return f"it fails on a few random tokens ({type(error).__name__}: {error})"


def _compare(model: PreTrainedModel, vocabulary: int, padding: int) -> str | None:
    """Compare on a batch of two sequences, the second with padding on the left."""
    layers = attention_layers(model)
    with attention_implementation(model, "eager"):
        expected = _run_random_tokens(model, vocabulary, padding)
    with patched_attention(model, layers):
        states = [LAYER_STATES[layer.module] for layer in layers]
        before = [(state.rules, state.sdpa) for state in states]
        try:
            # Nothing is sharpened, even in a model that is inside `sharpen`, and our own attention
            # computes it.
            for state in states:
                state.rules, state.sdpa = (), None
            answers = _run_random_tokens(model, vocabulary, padding)
        finally:
            for state, (rules, sdpa) in zip(states, before, strict=True):
                state.rules, state.sdpa = rules, sdpa
    # The order of rounding differs. On a model of 30 layers it makes a difference of 13 units of
    # the largest answer in float32 and 6 in half precision; a lost mask makes one of 90.
    units = 16 if torch.finfo(expected.dtype).bits == 16 else 50
    tolerance = units * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    difference = float((answers - expected).abs().max())
    if not difference <= tolerance:
        return f"its answers differ from those of eager attention by {difference:.2g}"
    return None


@torch.no_grad()
def _run_random_tokens(model: PreTrainedModel, vocabulary: int, padding: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (2, 12), generator=generator).to(model.device)
    mask = torch.ones_like(tokens)
    mask[1, :padding] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens[:, 3:]
    answers: Tensor = model(**inputs)[0]
    # One answer per token, of which those at padding mean nothing, or one per sequence.
    return answers[mask.bool()] if answers.shape[:2] == mask.shape else answers
