"""Attention whose inverse temperature depends on the length alone: torch's own kernel.

A factor on a row's logits is a factor on its query:

    softmax(b_i * scale * <q_i, K>) V = attention(b_i * q_i, K, V)

So a policy that does not look at the entropy costs one product on the query, with gradients, on
every device. One factor for all rows is part of the scale, and a factor of 1 everywhere leaves a
plain call of `torch.nn.functional.scaled_dot_product_attention`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sharpmax.policies import Policy, needs_entropy
from sharpmax.torch import products
from sharpmax.torch.counts import count_visible, length_factor
from sharpmax.torch.fused_kernels import causal_mask
from sharpmax.torch.interface import Inputs

if TYPE_CHECKING:
    from jaxtyping import Bool

MATH = 0
"""What `torch._fused_sdp_choice` returns where torch would hold the matrix of weights."""

MAX_MATRIX = 1 << 24
"""Entries of the largest mask that is combined with causality, which torch does not do."""

SMALLEST_SCALE = float(torch.finfo(torch.float32).tiny)
"""Kernels hide keys before they multiply by the scale, so that 0 or less would show them."""

FEW_KEYS = 32
"""Up to here torch's CPU kernel may lose a NaN, where the keys do not fill a vector of the
processor. Beyond, looking at its answers is enough, and faster."""


def refusal(inputs: Inputs, policy: Policy) -> str | None:
    """Return which part of the call this implementation does not support, or None."""
    if needs_entropy(policy):
        return f"a policy that looks at the entropy ({policy!r})"
    if inputs.value is None:
        return "statistics"
    if inputs.softcap is not None:
        return f"softcap={inputs.softcap}"
    if inputs.bias is not None:
        return f"an additive attn_mask ({inputs.bias.dtype}; a boolean one is supported)"
    if inputs.window is not None:
        return f"window={inputs.window}"
    if inputs.sinks is not None:
        return "sinks"
    if inputs.scale < SMALLEST_SCALE:
        return f"scale={inputs.scale}"
    if inputs.mask is not None and inputs.causal:
        entries = math.prod((*inputs.mask.shape[:3], inputs.query.shape[3], inputs.key.shape[2]))
        if entries > MAX_MATRIX:
            return f"is_causal with a mask of more than {MAX_MATRIX:,} entries"
    if not _has_kernel(inputs):
        return "these tensors (torch would hold the matrix of weights)"
    return None


def _has_kernel(inputs: Inputs) -> bool:
    """Return whether torch computes this call without the matrix of weights."""
    assert inputs.value is not None
    if 0 in inputs.query.shape or 0 in inputs.key.shape or inputs.dropout:
        return False
    if torch.compiler.is_compiling():  # cannot ask; torch may still hold the matrix
        return inputs.value.shape[-1] == inputs.query.shape[-1]
    query, mask, causal = inputs.query.flatten(1, 2), inputs.mask, inputs.causal
    if mask is not None:
        mask, causal = mask.expand(*mask.shape[:4], inputs.key.shape[2]).flatten(1, 2), False
    try:
        choice = torch._fused_sdp_choice(
            query,
            inputs.key,
            inputs.value,
            mask,
            is_causal=causal,
            enable_gqa=query.shape[1] != inputs.key.shape[1],
        )
    except (NotImplementedError, RuntimeError):  # a device that has no such choice
        return False
    return choice != MATH


def attend(inputs: Inputs, policy: Policy) -> Tensor | None:
    """Return the output; `refusal` must be None.

    None if a number is not finite: the kernels lose some NaN and spread others from hidden keys.
    """
    checked = inputs.needs_gradient or inputs.key.shape[2] <= FEW_KEYS
    if checked and not products.are_finite(inputs.query, inputs.key, inputs.value):
        return None
    query, mask, causal = _lay_out(inputs)
    scale, factor = inputs.scale, length_factor(inputs, policy)
    if isinstance(factor, float) and factor * scale >= SMALLEST_SCALE:
        scale, factor = factor * scale, None
    if isinstance(factor, Tensor):
        factor = factor.flatten(1, 2)[..., None]
    if factor is not None:
        query = (query * factor).to(query.dtype)
    assert inputs.value is not None
    output = F.scaled_dot_product_attention(
        query,
        inputs.key,
        inputs.value,
        mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[1] != inputs.key.shape[1],
    )
    if not checked and not products.are_finite(output):
        return None
    if mask is not None and output.device.type != "cpu":
        # On a CPU the kernel gives zeros for a row without keys; others are not known to.
        empty = count_visible(inputs).flatten(1, 2)[..., None] == 0
        output = output.masked_fill(empty, 0.0)
    return output.reshape(*inputs.rows, output.shape[-1])


def _lay_out(
    inputs: Inputs,
) -> tuple[Tensor, Bool[Tensor, "#batch #heads #query key"] | None, bool]:
    """Return query and mask as torch takes them, and whether torch is to add causality."""
    query, mask = inputs.query.flatten(1, 2), inputs.mask
    if mask is None:
        return query, None, inputs.causal
    mask = mask.expand(*mask.shape[:4], inputs.key.shape[2]).flatten(1, 2)
    if inputs.causal:
        rows = slice(0, query.shape[2])
        mask = mask & causal_mask(rows, inputs.key.shape[2], mask.device)
    return query, mask, False
