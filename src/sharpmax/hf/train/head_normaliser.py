"""The normaliser of one attention layer, with its learned parameters, and how it is computed.

A layer of a model that `with_normaliser` changed holds a `HeadNormaliser` as a submodule, so that
its parameters are trained, moved and saved with the model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sharpmax._errors import UserError
from sharpmax.hf.patch.attention import (
    attend_by,
    compute_layer,
    is_causal,
    is_plain_product,
    refuse_options,
)
from sharpmax.hf.patch.masks import WindowMask, count_visible
from sharpmax.hf.patch.scope import LayerState, Rule
from sharpmax.normalisers import (
    AdaptiveTemperature,
    Normaliser,
    QueryAwareScalableSoftmax,
    ScalableSoftmax,
    Softmax,
)
from sharpmax.torch import scaled_dot_product_attention

if TYPE_CHECKING:
    from jaxtyping import Float, Int

SUBMODULE = "normaliser"
"""The name of the `HeadNormaliser` in its attention layer, and in the names of saved tensors."""

LOWER_BOUNDS = {"alpha": 1.0, "power": 0.0, "temperature": 0.0}
"""Fields that must stay above a number. What is learned is the logarithm of the distance."""


class HeadNormaliser(nn.Module):
    """A normaliser whose learned fields have one value per head.

    Args:
        normaliser: The normaliser; its fields are the initial values.
        learned: The names of the fields to learn.
        heads: The number of query heads.
        like: A weight of the layer, whose type and device the parameters get.
    """

    def __init__(
        self, normaliser: Normaliser, learned: tuple[str, ...], heads: int, like: Tensor
    ) -> None:
        super().__init__()
        self.normaliser, self.learned, self.heads = normaliser, learned, heads
        for name in learned:
            value = float(getattr(normaliser, name))
            if name in LOWER_BOUNDS:
                value = math.log(value - LOWER_BOUNDS[name])
            initial = torch.full((heads,), value, dtype=like.dtype, device=like.device)
            self.register_parameter(name, nn.Parameter(initial))

    def fields(self) -> dict[str, Float[Tensor, " heads"] | float]:
        """Return the fields of the normaliser that can be learned, with their present values."""
        values: dict[str, Any] = {
            name: getattr(self.normaliser, name) for name in self.normaliser.parameters
        }
        for name in self.learned:
            raw = getattr(self, name).to(
                torch.promote_types(getattr(self, name).dtype, torch.float32)
            )
            values[name] = LOWER_BOUNDS[name] + raw.exp() if name in LOWER_BOUNDS else raw
        return values

    def weights(
        self,
        logits: Float[Tensor, "batch kv_heads group query key"],
        *,
        where: Any = None,
        axis: int = -1,
    ) -> Float[Tensor, "batch kv_heads group query key"]:
        """Turn the logits of all heads into weights."""
        by_head = {
            name: value.view(*logits.shape[1:3], 1, 1) if isinstance(value, Tensor) else value
            for name, value in self.fields().items()
        }
        normaliser = dataclasses.replace(self.normaliser, **by_head)  # type: ignore[type-var]
        return normaliser(logits, where=where, axis=axis)

    def query_factor(
        self, count: Int[Tensor, "#batch #heads query"], dtype: torch.dtype
    ) -> Float[Tensor, "#batch heads query 1"] | None:
        """Return the factor on each query that makes softmax this normaliser; None if none does.

        Args:
            count: How many keys each query sees.
            dtype: The type of the queries; factors have this or float32.
        """
        dtype = torch.promote_types(dtype, torch.float32)
        fields = {
            name: value[:, None] if isinstance(value, Tensor) else value
            for name, value in self.fields().items()
        }
        if isinstance(self.normaliser, (ScalableSoftmax, QueryAwareScalableSoftmax)):
            log_items = count.clamp(min=1).to(dtype).log()
            factor = fields["scale"] * log_items + fields["bias"]
            if "modulation" in fields:
                factor = factor * (1 + torch.as_tensor(fields["modulation"]).tanh())
        elif isinstance(self.normaliser, Softmax):
            factor = torch.ones_like(count, dtype=dtype) / fields["temperature"]
        else:
            return None
        return factor[..., None]

    def extra_repr(self) -> str:
        """Return what `print(model)` shows of it."""
        return f"{self.normaliser}, learned: {', '.join(self.learned) or 'nothing'}"


def attend_normalised(
    module: nn.Module,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Float[Tensor, "batch query heads value_dim"], Any]:
    """Compute one layer's attention with its normaliser; transformers calls this in each layer.

    A normaliser that is a factor on the query runs SDPA, adaptive temperature runs our own
    attention, and all others hold the matrix of weights.
    """
    head: HeadNormaliser | None = getattr(module, SUBMODULE, None)
    if not isinstance(head, HeadNormaliser):
        raise UserError(
            f"{type(module).__name__} has no normaliser, and its model was saved with one: load it "
            "with sharpmax.hf.load_with_normaliser"
        )
    if query.shape[1] != head.heads:
        raise UserError(
            f"{type(module).__name__} computes {query.shape[1]} of its {head.heads} heads here: a "
            "normaliser per head does not support tensor parallelism"
        )
    if isinstance(head.normaliser, AdaptiveTemperature):
        state = LayerState((Rule(head.normaliser.policy, None),), None)
        return compute_layer("sdpa", state, module, query, key, value, attention_mask, options)
    refuse_options(module, query, key, attention_mask, options)
    scaled = _scale_query(head, module, query, key, attention_mask, options)
    if scaled is not None:
        mask = attention_mask.matrix() if isinstance(attention_mask, WindowMask) else attention_mask
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, scaled, key, value, mask, **options)
    compute = functools.partial(_compute_weights, head)
    return attend_by(compute, None, module, query, key, value, attention_mask, **options)


def _scale_query(
    head: HeadNormaliser,
    module: nn.Module,
    query: Float[Tensor, "batch heads query dim"],
    key: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
) -> Tensor | None:
    """Return the query with which SDPA is this layer's attention, or None."""
    if not is_plain_product(options) or not (mask is None or mask.dtype == torch.bool):
        return None
    if key.shape[1] != query.shape[1] and not hasattr(module, "num_key_value_groups"):
        return None
    causal = is_causal(module, options)
    count = count_visible(mask, causal, query.shape[2], key.shape[2], query.device)
    factor = head.query_factor(count, query.dtype)
    return None if factor is None else (query * factor).to(query.dtype)


def _compute_weights(head: HeadNormaliser, arguments: dict[str, Any]) -> Tensor:
    arguments = {name: value for name, value in arguments.items() if name != "policy"}
    return scaled_dot_product_attention(**arguments, normaliser=head.weights)
