"""Fold the factor of each head into the weights that make its queries.

    b * <q, k> = <b * q, k>,   b * q = (b * W_q) x + b * bias

Rotary embeddings turn the query and keep the factor. Where a norm stands behind the projection, the
factor belongs into the norm's weight, which per-head factors can use only if the norm has a weight
per head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sharpmax._errors import UserError
from sharpmax.hf.export.factors import fixed_rules
from sharpmax.hf.patch.context import patched_attention
from sharpmax.hf.patch.layers import Layer, attention_layers, count_heads, evaluation_mode
from sharpmax.hf.patch.parity import TESTED_MODEL_TYPES

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sharpmax.hf.export.factors import Factors

SEPARATE = ("q_proj", "query", "q", "q_attn")
"""Projections that make nothing but queries: all heads, one after the other."""
FUSED = ("qkv_proj", "Wqkv", "c_attn")
"""Projections that make all queries first, then keys and values."""
INTERLEAVED = ("query_key_value",)
"""Projections that make, head by head, its query, key and value."""
NORMS = ("q_norm", "q_layernorm")

ALTERNATIVE = "use shf.sharpen, shf.apply or sharpmax's vLLM plugin"


def fold(model: PreTrainedModel, factors: Factors) -> dict[str, Tensor]:
    """Return the tensors of a model that change, by their names in its state dict.

    The model itself is not changed.

    Args:
        model: The model.
        factors: The factor of each head, for each layer in which one is not 1.

    Raises:
        UserError: The architecture cannot hold these factors. The message says why.
    """
    layers = attention_layers(model)
    if getattr(model, "hf_quantizer", None) is not None and not _is_dequantised(model):
        raise UserError(
            f"{type(model).__name__} has quantised weights, whose scales sharpmax does not know: "
            "load it without quantisation, or give its GGUF file"
        )
    changed: dict[str, Tensor] = {}
    for index, by_head in factors.items():
        changed |= _fold_layer(layers[index], by_head)
    _require_equal(model, layers, factors, changed)
    return changed


def _is_dequantised(model: PreTrainedModel) -> bool:
    config = getattr(model.config, "quantization_config", None)
    return "gguf" in str(getattr(config, "quant_method", "")).lower()


def _fold_layer(layer: Layer, by_head: Float[np.ndarray, " heads"]) -> dict[str, Tensor]:
    module: Any = layer.module
    kind = type(module).__name__
    if getattr(module, "attn_logit_softcapping", None) is not None:
        raise UserError(
            f"{kind} caps its logits (softcap), and the factor belongs behind it: {ALTERNATIVE}"
        )
    if hasattr(module, "has_relative_attention_bias"):
        raise UserError(
            f"{kind} adds a bias by position to its logits, which the factor belongs to as well: "
            f"{ALTERNATIVE}"
        )
    norm = next((name for name in NORMS if getattr(module, name, None) is not None), None)
    if norm is not None:
        return _fold_norm(layer, norm, by_head)
    name, rows = query_rows(layer)
    linear = getattr(module, name)
    if type(linear) not in (nn.Linear, Conv1D):
        raise UserError(
            f"{kind}.{name} is {type(linear).__name__}, not a plain Linear: merge adapters into "
            "the weights (merge_and_unload) and dequantise them, then export"
        )
    changed = {f"{layer.name}.{name}.weight": scale_rows(linear.weight, rows, by_head, linear)}
    if linear.bias is not None:
        changed[f"{layer.name}.{name}.bias"] = scale_rows(linear.bias, rows, by_head, linear)
    return changed


def _fold_norm(layer: Layer, name: str, by_head: Float[np.ndarray, " heads"]) -> dict[str, Tensor]:
    """Fold factors into the weight of a norm of the queries."""
    norm: Any = getattr(layer.module, name)
    weight: Tensor = norm.weight.detach()
    shared = weight.numel() % len(by_head) or weight.numel() == getattr(
        layer.module, "head_dim", None
    )
    if shared and len(set(by_head.tolist())) > 1:
        raise UserError(
            f"{type(layer.module).__name__}.{name} normalises the queries of all heads by one "
            f"weight, so that factors per head cannot be folded into it: {ALTERNATIVE}"
        )
    one = torch.as_tensor(by_head, device=weight.device)
    factor = one[0] if shared else one.repeat_interleave(weight.numel() // len(by_head))
    # Gemma stores its norms' weights minus 1.
    offset = 1.0 if "gemma" in type(norm).__name__.lower() else 0.0
    folded = (weight.double() + offset) * factor - offset
    changed = {f"{layer.name}.{name}.weight": folded.to(weight.dtype)}
    if getattr(norm, "bias", None) is not None:
        bias = norm.bias.detach()
        changed[f"{layer.name}.{name}.bias"] = (bias.double() * factor).to(bias.dtype)
    return changed


def query_rows(layer: Layer) -> tuple[str, Int[np.ndarray, "heads dim"]]:
    """Return the projection that makes the queries, and the rows that belong to each head."""
    module: Any = layer.module
    heads = count_heads(layer)
    for name in (*SEPARATE, *FUSED, *INTERLEAVED):
        linear = getattr(module, name, None)
        if linear is None:
            continue
        size = linear.nf if isinstance(linear, Conv1D) else linear.weight.shape[0]
        if name in INTERLEAVED:
            return name, np.arange(size).reshape(heads, 3, -1)[:, 0]
        dim = size // heads if name in SEPARATE else getattr(module, "head_dim", size // 3 // heads)
        return name, np.arange(heads * dim).reshape(heads, dim)
    raise UserError(
        f"{type(module).__name__} has no query projection that sharpmax knows: {ALTERNATIVE}"
    )


def scale_rows(
    tensor: Tensor,
    rows: Int[np.ndarray, "heads dim"],
    by_head: Float[np.ndarray, " heads"],
    linear: nn.Module,
) -> Tensor:
    """Multiply the rows of each head by its factor, in float64."""
    tensor = tensor.detach()
    axis = 1 if isinstance(linear, Conv1D) and tensor.ndim == 2 else 0
    factor = torch.ones(tensor.shape[axis], dtype=torch.float64, device=tensor.device)
    factor[torch.as_tensor(rows.ravel())] = torch.as_tensor(
        by_head.repeat(rows.shape[1]), device=tensor.device
    )
    if axis == 0 and tensor.ndim == 2:
        factor = factor[:, None]
    return (tensor.double() * factor).to(tensor.dtype)


@torch.no_grad()
def _require_equal(
    model: PreTrainedModel, layers: list[Layer], factors: Factors, changed: dict[str, Tensor]
) -> None:
    """Compare the folded weights with `sharpen` on a few random tokens."""
    name = type(model).__name__
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
    if model.main_input_name != "input_ids" or vocabulary is None:
        if model.config.model_type in TESTED_MODEL_TYPES:
            return
        raise UserError(f"{name} reads {model.main_input_name}: its export is not tested")
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (1, 24), generator=generator).to(model.device)
    inputs = {"input_ids": tokens}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens[:, :9]
    with evaluation_mode(model):
        with patched_attention(model, layers, fixed_rules(layers, factors)):
            expected = model(**inputs)[0]
        found = functional_call(model, changed, (), inputs)[0]
    # Weights are rounded once more. In a network of 30 layers that is some dozen units of the
    # largest answer; a row that is missed makes a hundred times more.
    tolerance = 64 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    difference = float((found - expected).abs().max())
    if not difference <= tolerance:
        raise UserError(
            f"{name} with folded weights differs from sharpen by {difference:.2g} in its answers "
            f"(at most {tolerance:.2g} is rounding), so it is not exported: {ALTERNATIVE}"
        )
