"""Products of queries and keys, and of weights and values, of which hidden items are no part.

A hidden key has a weight of 0, but 0 times NaN is NaN. So where an item is not finite it is left
out of the product, and out of its gradient. Finding out costs one sum per product. It is done only
where numbers can be read at once: on a CPU, and not while torch traces.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax import _array

if TYPE_CHECKING:
    from jaxtyping import Float


def are_finite(*tensors: Tensor | None) -> bool:
    """Return whether all numbers are finite, or cannot be read.

    A sum that overflows counts as not finite: what follows is right for every number.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.device.type != "cpu" or not _array.is_concrete(tensor):
            return True
        half = tensor.dtype in (torch.float16, torch.bfloat16)
        if not math.isfinite(tensor.detach().sum(dtype=torch.float32 if half else None).item()):
            return False
    return True


def multiply(
    query: Float[Tensor, "batch query dim"],
    key: Float[Tensor, "batch key dim"],
    out: Float[Tensor, "batch query key"] | None = None,
) -> Float[Tensor, "batch query key"]:
    """Return <query, key>; an item that is not finite has no gradient.

    Without a gradient nothing needs to be done: a hidden logit is overwritten later.
    """
    recorded = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    if not recorded or are_finite(query, key):
        return torch.bmm(query, key.mT, out=out)
    finite = [tensor.isfinite().all(-1) for tensor in (query, key)]
    clean = torch.bmm(
        torch.where(finite[0][..., None], query, 0.0),
        torch.where(finite[1][..., None], key, 0.0).mT,
    )
    both = finite[0][:, :, None] & finite[1][:, None, :]
    return torch.where(both, clean, torch.bmm(query.detach(), key.detach().mT))


def weigh(
    weights: Float[Tensor, "batch query key"], value: Float[Tensor, "batch key value_dim"]
) -> Float[Tensor, "batch query value_dim"]:
    """Return the weighted sum of the values; a value whose weight is 0 is no part of it."""
    total = torch.bmm(weights, value)
    if are_finite(total):
        return total
    finite = value.isfinite()
    clean = torch.bmm(weights, torch.where(finite, value, 0.0))
    seen = torch.bmm((weights.detach() != 0).to(value.dtype), (~finite).to(value.dtype)) > 0
    return torch.where(seen, total.detach(), clean)
