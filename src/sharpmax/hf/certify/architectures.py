"""Read from each architecture how an attention layer gets from its input to its logits.

That is: the normalisation of its input, the rows of its projections that belong to each head, and
what happens to queries and keys before they meet. `COVERED` is the table of architectures. A bound
that ignores a part of the computation is no bound, so every other architecture is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sharpmax._errors import UserError
from sharpmax.hf.patch.layers import Layer, count_heads

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Projection:
    """The weight and bias of a query or key projection, in float64, split into heads."""

    weight: Float[np.ndarray, "heads dim model"]
    bias: Float[np.ndarray, "heads dim"]

    @staticmethod
    def split(
        weight: Float[np.ndarray, "out model"], bias: Float[np.ndarray, " out"], heads: int
    ) -> Projection:
        """Split the rows of a projection evenly into heads."""
        return Projection(weight.reshape(heads, -1, weight.shape[1]), bias.reshape(heads, -1))

    def channels(self, start: int, stop: int) -> Projection:
        """Return these channels of every head."""
        return Projection(self.weight[:, start:stop], self.bias[:, start:stop])

    def repeat(self, heads: int) -> Projection:
        """Repeat key heads for the query heads that share them, which are neighbours."""
        group = heads // len(self.weight)
        return Projection(
            np.repeat(self.weight, group, axis=0), np.repeat(self.bias, group, axis=0)
        )


@dataclass(frozen=True)
class LogitParameters:
    """What determines the logits of an attention layer, given its input.

    Attributes:
        input_norm: The normalisation that the layer's input comes from; None if queries and keys
            are normalised themselves.
        query: The query projection.
        key: The key projection, with as many heads as the queries.
        query_norm: A normalisation of the queries.
        key_norm: A normalisation of the keys.
        scale: The factor on the product of query and key.
        rotated: Whether rotary position embeddings are applied.
        softcap: The constant c of c tanh(e / c).
        bias_range: Largest minus smallest entry of a position bias added to the logits, per head.
    """

    input_norm: nn.Module | None
    query: Projection
    key: Projection
    query_norm: nn.Module | None = None
    key_norm: nn.Module | None = None
    scale: float = 1.0
    rotated: bool = True
    softcap: float | None = None
    bias_range: Float[np.ndarray, " heads"] | None = None


def read_logit_parameters(model: PreTrainedModel, layer: Layer) -> LogitParameters:
    """Read the parameters of a layer's logits; raise if its architecture is not covered."""
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
            f"{type(model).__name__} cannot be certified: {layer.name} attends to another model's "
            "output, which these weights do not bound"
        )
    try:
        return COVERED[kind](model, layer, module)
    except AttributeError as error:
        raise UserError(
            f"{type(model).__name__} ({kind}) cannot be certified: it is not built as the {kind} "
            f"that sharpmax knows ({error})"
        ) from error


def to_float64(tensor: Tensor, name: str) -> Float[np.ndarray, "..."]:
    """Return a weight as a float64 array; raise if it has no or no finite values."""
    if tensor.is_meta:
        raise UserError(f"{name} has no values (device meta): load the weights first")
    array = tensor.detach().double().cpu().numpy()
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds NaN or infinity: no bound follows from it")
    return array


def _read_linear(
    owner: nn.Module, name: str
) -> tuple[Float[np.ndarray, "out model"], Float[np.ndarray, " out"]]:
    """Return the weight and bias of a plain linear layer.

    Adapters and packed weights are refused: their `.weight` is not the matrix that is applied.
    """
    module: Any = getattr(owner, name)
    if type(module) not in (nn.Linear, Conv1D):
        raise UserError(
            f"{type(owner).__name__}.{name} is {type(module).__name__}, not a plain Linear: merge "
            "adapters into the weights and dequantise them, then certify"
        )
    weight = to_float64(module.weight, f"{name}.weight")
    weight = weight.T if type(module) is Conv1D else weight
    bias = np.zeros(len(weight)) if module.bias is None else to_float64(module.bias, f"{name}.bias")
    return weight, bias


def _split_linear(owner: nn.Module, name: str, heads: int) -> Projection:
    """Return a plain linear layer split into heads."""
    return Projection.split(*_read_linear(owner, name), heads)


def _parent(model: PreTrainedModel, layer: Layer) -> Any:
    """Return the module that holds the layer."""
    return model.get_submodule(layer.name.rpartition(".")[0])


def _like_llama(model: PreTrainedModel, layer: Layer, module: Any) -> LogitParameters:
    """Read a layer with q_proj and k_proj behind a norm, and perhaps norms of queries and keys."""
    heads = count_heads(layer)
    key_heads = heads // module.num_key_value_groups
    kind = "layernorm" if hasattr(module, "q_layernorm") else "norm"
    return LogitParameters(
        input_norm=_parent(model, layer).input_layernorm,
        query=_split_linear(module, "q_proj", heads),
        key=_split_linear(module, "k_proj", key_heads).repeat(heads),
        query_norm=getattr(module, f"q_{kind}", None),
        key_norm=getattr(module, f"k_{kind}", None),
        scale=module.scaling,
        rotated=bool(getattr(module, "use_rope", True)),
        softcap=module.attn_logit_softcapping if model.config.model_type == "gemma2" else None,
    )


def _olmo2(model: PreTrainedModel, layer: Layer, module: Any) -> LogitParameters:
    """Read a layer whose input is not normalised, but the queries and keys of all heads are."""
    heads = count_heads(layer)
    key_heads = heads // module.num_key_value_groups
    return LogitParameters(
        input_norm=None,
        query=_split_linear(module, "q_proj", heads),
        key=_split_linear(module, "k_proj", key_heads).repeat(heads),
        query_norm=module.q_norm,
        key_norm=module.k_norm,
        scale=module.scaling,
    )


def _phi3(model: PreTrainedModel, layer: Layer, module: Any) -> LogitParameters:
    """Read a layer with one projection: all queries, then all keys, then all values."""
    heads, key_heads, dim = count_heads(layer), module.num_key_value_heads, module.head_dim
    weight, bias = _read_linear(module, "qkv_proj")
    start, stop = heads * dim, (heads + key_heads) * dim
    return LogitParameters(
        input_norm=_parent(model, layer).input_layernorm,
        query=Projection.split(weight[:start], bias[:start], heads),
        key=Projection.split(weight[start:stop], bias[start:stop], key_heads).repeat(heads),
        scale=module.scaling,
    )


def _gpt_neox(model: PreTrainedModel, layer: Layer, module: Any) -> LogitParameters:
    """Read a layer with one projection: per head its query, key and value."""
    projection = _split_linear(module, "query_key_value", count_heads(layer))
    dim = projection.bias.shape[1] // 3
    return LogitParameters(
        input_norm=_parent(model, layer).input_layernorm,
        query=projection.channels(0, dim),
        key=projection.channels(dim, 2 * dim),
        scale=module.scaling,
    )


def _gpt2(model: PreTrainedModel, layer: Layer, module: Any) -> LogitParameters:
    """Read a layer whose positions are in its normalised input; one projection as in Phi-3."""
    heads = count_heads(layer)
    weight, bias = _read_linear(module, "c_attn")
    size = len(weight) // 3
    return LogitParameters(
        input_norm=_parent(model, layer).ln_1,
        query=Projection.split(weight[:size], bias[:size], heads),
        key=Projection.split(weight[size : 2 * size], bias[size : 2 * size], heads),
        scale=module.scaling,
        rotated=False,
    )


def _bert(model: PreTrainedModel, layer: Layer, module: Any) -> LogitParameters:
    """Read a layer whose input was normalised at the end of the previous block or embeddings."""
    heads = count_heads(layer)
    before, _, _ = layer.name.rpartition(".attention.self")
    blocks, _, number = before.rpartition(".")
    norm = (
        f"{blocks}.{int(number) - 1}.output.LayerNorm"
        if int(number)
        else f"{blocks.removesuffix('encoder.layer')}embeddings.LayerNorm"
    )
    return LogitParameters(
        input_norm=model.get_submodule(norm),
        query=_split_linear(module, "query", heads),
        key=_split_linear(module, "key", heads),
        scale=module.scaling,
        rotated=False,
    )


def _modernbert(model: PreTrainedModel, layer: Layer, module: Any) -> LogitParameters:
    """Read a layer with one projection as in Phi-3; the embeddings normalise the first input."""
    heads = count_heads(layer)
    weight, bias = _read_linear(module, "Wqkv")
    size = len(weight) // 3
    norm = _parent(model, layer).attn_norm
    if isinstance(norm, nn.Identity):
        norm = model.get_submodule(layer.name.partition("layers.")[0] + "embeddings.norm")
    return LogitParameters(
        input_norm=norm,
        query=Projection.split(weight[:size], bias[:size], heads),
        key=Projection.split(weight[size : 2 * size], bias[size : 2 * size], heads),
        scale=module.head_dim**-0.5,
    )


def _t5(model: PreTrainedModel, layer: Layer, module: Any) -> LogitParameters:
    """Read an encoder layer with a bias by distance.

    All layers share the table of the first. It is bounded: all large distances share one entry.
    """
    if module.is_decoder:
        raise UserError("the decoder of T5 cannot be certified: give model.get_encoder()")
    heads = count_heads(layer)
    tables: list[Any] = [
        other for other in model.modules() if hasattr(other, "relative_attention_bias")
    ]
    table = to_float64(tables[0].relative_attention_bias.weight, "relative_attention_bias.weight")
    return LogitParameters(
        input_norm=_parent(model, layer).layer_norm,
        query=_split_linear(module, "q", heads),
        key=_split_linear(module, "k", heads),
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
COVERED: dict[str, Callable[[PreTrainedModel, Layer, Any], LogitParameters]] = {
    **dict.fromkeys(LIKE_LLAMA, _like_llama),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _bert),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "modernbert": _modernbert,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "t5": _t5,
}
"""The function that reads each architecture, by `config.model_type`."""

_ALIBI = "its bias by distance (ALiBi) grows without limit, and so does the spread"
REFUSED = {
    "bloom": _ALIBI,
    "mpt": _ALIBI,
    "llama4": "its queries grow with the logarithm of their position",
    "whisper": "its decoder attends to the output of its encoder",
}
"""Reasons for architectures that are known not to be covered."""
