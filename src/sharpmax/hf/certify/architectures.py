"""What lies between the residual stream and the logits of an attention layer, by architecture: the
normalisation of its input, the rows of its weights that belong to each head, and what is done to
queries and keys before they meet.

`COVERED` is the table. A bound that forgets a part is no bound, so whatever is not in it, or not as
the table says, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.certify.projections import affine, grouped, numbers, rows
from sharpmax.hf.patch.layers import Layer, count_heads

if TYPE_CHECKING:
    from jaxtyping import Float

    from sharpmax.hf.certify.projections import Rows


@dataclass(frozen=True)
class Wiring:
    """One attention layer's way from its input to its logits."""

    norm: nn.Module | None
    """What its input comes out of; None if queries and keys are normalised themselves."""
    query: Rows
    key: Rows
    query_norm: nn.Module | None = None
    key_norm: nn.Module | None = None
    scale: float = 1.0
    rotated: bool = True
    softcap: float | None = None
    bias_range: Float[np.ndarray, " heads"] | None = None
    """Largest minus smallest entry of a position bias that is added to the logits."""


def wiring_of(model: PreTrainedModel, layer: Layer) -> Wiring:
    """How one layer is wired; raises, naming the architecture, if the table does not have it."""
    kind = model.config.model_type
    if kind not in COVERED:
        reason = REFUSED.get(kind, "what bounds its queries and keys is not in sharpmax's table")
        raise UserError(
            f"{type(model).__name__} ({kind}) cannot be certified: {reason}; covered are "
            f"{', '.join(sorted(COVERED))}"
        )
    module: Any = layer.module
    if getattr(module, "is_cross_attention", False) or "crossattention" in layer.name:
        raise UserError(
            f"{type(model).__name__}: {layer.name} attends to another model's output, which "
            "nothing in these weights bounds: not certified"
        )
    try:
        return COVERED[kind](model, layer, module)
    except AttributeError as error:
        raise UserError(
            f"{type(model).__name__} ({kind}) is not built as the {kind} that sharpmax knows "
            f"({error}): not certified"
        ) from error


def _around(model: PreTrainedModel, layer: Layer, levels: int = 1) -> Any:
    """The module that holds the layer, some levels up."""
    return model.get_submodule(layer.name.rsplit(".", levels)[0])


def _like_llama(model: PreTrainedModel, layer: Layer, module: Any) -> Wiring:
    """RMSNorm or LayerNorm, q_proj and k_proj with or without bias, perhaps a norm of each head's
    queries and keys, rotary positions.
    """
    heads = count_heads(layer)
    key_heads = heads // module.num_key_value_groups
    kind = "layernorm" if hasattr(module, "q_layernorm") else "norm"
    return Wiring(
        norm=_around(model, layer).input_layernorm,
        query=rows(*affine(module, "q_proj"), heads),
        key=grouped(rows(*affine(module, "k_proj"), key_heads), heads),
        query_norm=getattr(module, f"q_{kind}", None),
        key_norm=getattr(module, f"k_{kind}", None),
        scale=module.scaling,
        rotated=bool(getattr(module, "use_rope", True)),
        softcap=module.attn_logit_softcapping if model.config.model_type == "gemma2" else None,
    )


def _olmo2(model: PreTrainedModel, layer: Layer, module: Any) -> Wiring:
    """The input is the residual stream itself, but queries and keys of all heads are normalised
    together.
    """
    heads = count_heads(layer)
    key_heads = heads // module.num_key_value_groups
    return Wiring(
        norm=None,
        query=rows(*affine(module, "q_proj"), heads),
        key=grouped(rows(*affine(module, "k_proj"), key_heads), heads),
        query_norm=module.q_norm,
        key_norm=module.k_norm,
        scale=module.scaling,
    )


def _phi3(model: PreTrainedModel, layer: Layer, module: Any) -> Wiring:
    """Queries, keys and values in one projection, one after the other."""
    heads, dim = count_heads(layer), module.head_dim
    weight, bias = affine(module, "qkv_proj")
    first, then = heads * dim, (heads + module.num_key_value_heads) * dim
    key = rows(weight[first:then], bias[first:then], module.num_key_value_heads)
    return Wiring(
        norm=_around(model, layer).input_layernorm,
        query=rows(weight[:first], bias[:first], heads),
        key=grouped(key, heads),
        scale=module.scaling,
    )


def _gpt_neox(model: PreTrainedModel, layer: Layer, module: Any) -> Wiring:
    """Query, key and value of a head stand together."""
    weight, bias = rows(*affine(module, "query_key_value"), count_heads(layer))
    dim = weight.shape[1] // 3
    return Wiring(
        norm=_around(model, layer).input_layernorm,
        query=(weight[:, :dim], bias[:, :dim]),
        key=(weight[:, dim : 2 * dim], bias[:, dim : 2 * dim]),
        scale=module.scaling,
    )


def _gpt2(model: PreTrainedModel, layer: Layer, module: Any) -> Wiring:
    """Positions are in the input, which the LayerNorm clamps like all of it."""
    heads = count_heads(layer)
    weight, bias = affine(module, "c_attn")
    size = len(weight) // 3
    return Wiring(
        norm=_around(model, layer).ln_1,
        query=rows(weight[:size], bias[:size], heads),
        key=rows(weight[size : 2 * size], bias[size : 2 * size], heads),
        scale=module.scaling,
        rotated=False,
    )


def _bert(model: PreTrainedModel, layer: Layer, module: Any) -> Wiring:
    """Normalised after each block: the input comes out of the block before, or the embeddings."""
    heads = count_heads(layer)
    before, _, _ = layer.name.rpartition(".attention.self")
    blocks, _, number = before.rpartition(".")
    norm = (
        f"{blocks}.{int(number) - 1}.output.LayerNorm"
        if int(number)
        else f"{blocks.removesuffix('encoder.layer')}embeddings.LayerNorm"
    )
    return Wiring(
        norm=model.get_submodule(norm),
        query=rows(*affine(module, "query"), heads),
        key=rows(*affine(module, "key"), heads),
        scale=module.scaling,
        rotated=False,
    )


def _modernbert(model: PreTrainedModel, layer: Layer, module: Any) -> Wiring:
    """The first layer reads the embeddings, which have been normalised already."""
    heads = count_heads(layer)
    weight, bias = affine(module, "Wqkv")
    size = len(weight) // 3
    norm = _around(model, layer).attn_norm
    if isinstance(norm, nn.Identity):
        norm = model.get_submodule(layer.name.partition("layers.")[0] + "embeddings.norm")
    return Wiring(
        norm=norm,
        query=rows(weight[:size], bias[:size], heads),
        key=rows(weight[size : 2 * size], bias[size : 2 * size], heads),
        scale=module.head_dim**-0.5,
    )


def _t5(model: PreTrainedModel, layer: Layer, module: Any) -> Wiring:
    """A bias by distance is added to the logits; all layers take the first one's table, in which
    everything far away has one entry, so that it is bounded.
    """
    if module.is_decoder:
        raise UserError("T5 is certified by its encoder: give model.get_encoder()")
    heads = count_heads(layer)
    tables = [one for one in model.modules() if hasattr(one, "relative_attention_bias")]
    table = numbers(tables[0].relative_attention_bias.weight, "relative_attention_bias.weight")  # type: ignore[union-attr,arg-type]
    return Wiring(
        norm=_around(model, layer).layer_norm,
        query=rows(*affine(module, "q"), heads),
        key=rows(*affine(module, "k"), heads),
        scale=module.scaling,
        rotated=False,
        bias_range=np.ptp(table, axis=0),
    )


LIKE_LLAMA = (
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "phi",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "starcoder2",
)
COVERED: dict[str, Callable[[PreTrainedModel, Layer, Any], Wiring]] = {
    **dict.fromkeys(LIKE_LLAMA, _like_llama),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _bert),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "modernbert": _modernbert,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "t5": _t5,
}
"""By `config.model_type`."""

_ALIBI = "its bias by distance (ALiBi) grows without limit, and so does the spread"
REFUSED = {
    "bloom": _ALIBI,
    "mpt": _ALIBI,
    "llama4": "its queries grow with the logarithm of their position",
    "whisper": "its decoder attends to sound, of which only an encoder of its own would tell",
}
"""Why, where more is known than that nobody has looked."""
