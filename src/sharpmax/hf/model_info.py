"""Facts about a model that results, prompts and warnings need."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

from sharpmax.hf.patch.wrappers import (
    describe_placement,
    read_weight,
    unique_parameters,
)

PLAIN_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))


def describe_model(
    model: PreTrainedModel, name: str | None, notes: Sequence[str]
) -> dict[str, Any]:
    """Return what results say about a model.

    Args:
        model: The model.
        name: What to call it, or None for the name in its config.
        notes: What readers of the results must know about it.
    """
    temperature = describe_length_temperature(model)
    if temperature is not None:
        notes = [*notes, f"the model has a length temperature of its own: {temperature}"]
    placement, quantisation = describe_placement(model), describe_quantisation(model)
    if placement.note is not None:
        notes = [*notes, placement.note]
    if quantisation is not None:
        notes = [*notes, f"the weights are quantised: {quantisation}"]
    return {
        "model": name or model.config._name_or_path or placement.architecture,
        "architecture": placement.architecture,
        "model_type": model.config.model_type,
        "parameters": placement.parameters,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": placement.device,
        "notes": list(dict.fromkeys(notes)),
    }


def weights_fingerprint(model: PreTrainedModel) -> str:
    """Return a hash of the beginning of every tensor: enough to tell models apart, and fast.

    It does not depend on where the weights are: on one device, on several, split among processes,
    or offloaded.
    """
    digest = hashlib.sha256()
    for name, parameter in list(unique_parameters(model)):
        _hash_tensor(digest, name, read_weight(model, name, parameter))
    for name, buffer in quantised_buffers(model):
        _hash_tensor(digest, name, read_weight(model, name, buffer))
    return digest.hexdigest()


def _hash_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    if is_traceable_wrapper_subclass(tensor):  # such as torchao's: integers and their scales
        parts, settings = tensor.__tensor_flatten__()
        # They say how the integers are used: one layout may serve several ways to quantise inputs.
        # As JSON, where tuples are lists: saving and loading turns one into the other.
        text = json.dumps(settings, default=repr, skipkeys=True, sort_keys=True)
        digest.update(re.sub(r" at 0x\w+", "", text).encode())
        for part in parts:
            _hash_tensor(digest, f"{name}.{part}", getattr(tensor, part))
        return
    start = tensor.detach().flatten()[:256].to("cpu", torch.float64).numpy()
    digest.update(name.encode() + start.tobytes())


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


def context_length(model: PreTrainedModel) -> int | None:
    """Return how many tokens the model can read, if its config says so."""
    config = model.config.get_text_config()
    for name in ("max_position_embeddings", "n_positions"):
        length = getattr(config, name, None)
        if isinstance(length, int):
            return length
    return None


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Return whether a model is an encoder together with its decoder.

    Its config cannot tell: the encoder alone and the decoder alone have the same one.
    """
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def describe_length_temperature(model: PreTrainedModel) -> str | None:
    """Return how the model already scales its attention with length, or None if it does not.

    Includes `describe_growing_temperature`, and the constant factor of YaRN and LongRoPE.
    """
    growing = describe_growing_temperature(model)
    if growing is not None:
        return growing
    for config in _model_configs(model):
        kinds = [part.get("rope_type") for part in _rope_parameters(config)]
        if "yarn" in kinds or "longrope" in kinds:
            kind = "yarn" if "yarn" in kinds else "longrope"
            return f"rope_type={kind} (all logits times a constant for the longer context)"
    return None


def describe_growing_temperature(model: PreTrainedModel) -> str | None:
    """Return how the model's queries grow with their position, or None if they do not.

    Llama 4, Ministral 3, Mistral 4, Qwen 1, Inkling and Beam have such queries.
    """
    for config in _model_configs(model):
        if getattr(config, "attn_temperature_tuning", False):
            return "attn_temperature_tuning (queries grow with the logarithm of their position)"
        if any(part.get("llama_4_scaling_beta") for part in _rope_parameters(config)):
            return "llama_4_scaling_beta (queries grow with the logarithm of their position)"
        if getattr(config, "use_logn_attn", False):
            return "use_logn_attn (queries grow with the logarithm of their position)"
        if getattr(config, "log_scaling_alpha", None):
            return "log_scaling_alpha (queries grow with the logarithm of their position)"
        if getattr(config, "model_type", None) == "beam":
            return "Beam's position scale (queries grow with a power of their position)"
    return None


def _model_configs(model: PreTrainedModel) -> list[Any]:
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    return list({id(module.config): module.config for module in models}.values())


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Return the parameters of rotary embeddings, and those of single kinds of layers in them."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope, *(inner for inner in rope.values() if isinstance(inner, dict))]
