"""Which attention layers a model has, and whether all of them can be reached.

A layer whose attention goes through transformers' `AttentionInterface` can be measured and
sharpened. Some models call another kernel directly: nothing would tell that they stay as they are,
so they are refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError

INTERFACE = "ALL_ATTENTION_FUNCTIONS"


@dataclass(frozen=True)
class Layer:
    """One attention layer, numbered in the order in which the model holds them: in an
    encoder-decoder the encoder's come first, and a decoder block has two, self and cross.
    """

    index: int
    name: str
    module: nn.Module


def attention_layers(model: PreTrainedModel) -> list[Layer]:
    """All attention layers of a model; raises if there are none, or some that cannot be reached."""
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"expected a transformers model (PreTrainedModel), got {type(model).__name__}"
        )
    reached = [(name, module) for name, module in model.named_modules() if _calls(module)]
    _refuse_others(model, [name for name, _ in reached])
    if not reached:
        raise UserError(
            f"{type(model).__name__}: no layer of it calls transformers' AttentionInterface, so "
            "its attention cannot be measured or sharpened from outside"
        )
    return [Layer(index, *found) for index, found in enumerate(reached)]


def _calls(module: nn.Module) -> bool:
    """Whether its forward looks the attention function up in the interface."""
    forward: Any = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is not None and INTERFACE in code.co_names


def _refuse_others(model: PreTrainedModel, reached: Collection[str]) -> None:
    """Attention that neither calls the interface, nor holds or is held by a layer that does."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        related = any(
            name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.")
            for other in reached
        )
        if "Attention" in kind and not related and list(module.parameters()):
            raise UserError(
                f"{type(model).__name__}: {kind} at {name} does not call transformers' "
                "AttentionInterface, so its heads would silently stay as they are; this model is "
                "not supported"
            )


def select(
    layers: list[Layer], wanted: Collection[int] | None, what: str = "layers"
) -> list[Layer]:
    """The layers of these numbers, negative ones counted from the end; all if None."""
    if wanted is None:
        return layers
    return [layers[number] for number in chosen(wanted, len(layers), what)]


def chosen(wanted: Collection[int], size: int, what: str) -> list[int]:
    """Numbers of layers or heads, checked, in order and once each."""
    if isinstance(wanted, int) or not wanted:
        raise UserError(
            f"{what}={wanted!r}: expected several numbers such as [0, 3], or None for all"
        )
    for number in wanted:
        if isinstance(number, bool) or not isinstance(number, int) or not -size <= number < size:
            raise UserError(f"{what}: no {number!r} among {size}, which are 0 to {size - 1}")
    return sorted({number % size for number in wanted})


def heads_of(layer: Layer) -> int | None:
    """How many query heads a layer has, if it says so."""
    module = layer.module
    for holder, name in (
        (module, "num_heads"),
        (module, "num_attention_heads"),
        (module, "n_heads"),
        (getattr(module, "config", None), "num_attention_heads"),
    ):
        found = getattr(holder, name, None)
        if isinstance(found, int):
            return found
    return None


def own_temperature(model: PreTrainedModel) -> str | None:
    """How the model already scales its attention by length, if it does: as `growing_temperature`,
    or YaRN and LongRoPE by a constant.
    """
    growing = growing_temperature(model)
    if growing is not None:
        return growing
    for config in _configs(model):
        kinds = [part.get("rope_type") for part in _rope(config)]
        if "yarn" in kinds or "longrope" in kinds:
            kind = "yarn" if "yarn" in kinds else "longrope"
            return f"rope_type={kind} (all logits times a constant for the longer context)"
    return None


def growing_temperature(model: PreTrainedModel) -> str | None:
    """How the model's queries grow with their position, if they do: Llama 4, Ministral 3 and
    Mistral 4, Qwen 1, Inkling, Beam.
    """
    for config in _configs(model):
        if getattr(config, "attn_temperature_tuning", False):
            return "attn_temperature_tuning (queries grow with the logarithm of their position)"
        if any(part.get("llama_4_scaling_beta") for part in _rope(config)):
            return "llama_4_scaling_beta (queries grow with the logarithm of their position)"
        if getattr(config, "use_logn_attn", False):
            return "use_logn_attn (queries grow with the logarithm of their position)"
        if getattr(config, "log_scaling_alpha", None):
            return "log_scaling_alpha (queries grow with the logarithm of their position)"
        if getattr(config, "model_type", None) == "beam":
            return "Beam's position scale (queries grow with a power of their position)"
    return None


def _configs(model: PreTrainedModel) -> list[Any]:
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    return list({id(module.config): module.config for module in models}.values())


def _rope(config: Any) -> list[dict[str, Any]]:
    """The parameters of its rotary embeddings, and those of single kinds of layers inside them."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope, *(inner for inner in rope.values() if isinstance(inner, dict))]
