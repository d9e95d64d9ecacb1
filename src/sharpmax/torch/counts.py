"""How many keys each query can see, and what a policy of that number alone answers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.policies import Policy, inverse_temperatures, traits
from sharpmax.torch.fused_kernels import causal_mask, split_rows
from sharpmax.torch.interface import Inputs

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def count_visible(inputs: Inputs) -> Int[Tensor, "batch kv_heads group query"]:
    """Return how many keys each query can see, without the logits."""
    queries, keys = inputs.query.shape[3], inputs.key.shape[2]
    device = inputs.query.device
    if inputs.mask is None:
        causal = torch.arange(1, queries + 1, device=device).clamp(max=keys)
        count = causal if inputs.causal else torch.full((queries,), keys, device=device)
    else:
        mask = inputs.mask.expand(*inputs.mask.shape[:4], keys)
        if not inputs.causal:
            count = mask.sum(-1)
        elif mask.shape[3] == 1:
            last = torch.arange(queries, device=device).clamp(max=keys - 1)
            count = mask[:, :, :, 0].cumsum(-1)[..., last]
        else:
            counts = [
                (mask[..., rows, :] & causal_mask(rows, keys, device)).sum(-1)
                for rows in split_rows(mask, queries)
            ]
            count = torch.cat(counts, -1)
    return count.to(torch.int32).expand(inputs.query.shape[:4])


def length_factor(inputs: Inputs, policy: Policy) -> Tensor | float | None:
    """Return the inverse temperature of each row by a policy that ignores the entropy.

    Without a mask the answer of a fixed policy is remembered: all layers of a model, and all steps
    of a training, ask the same question.

    Args:
        inputs: The call.
        policy: A policy whose trait `needs_entropy` is False.

    Returns:
        One number per row, [#batch #kv_heads #group query]; one number for all rows; or None if
        it is 1 in every row.
    """
    about = traits(policy)
    keys = inputs.key.shape[2]
    if keys <= about.plain_up_to and not (about.learned and torch.is_grad_enabled()):
        return None
    compiling = torch.compiler.is_compiling()
    if inputs.mask is not None or compiling or about.learned or not _is_hashable(policy):
        return _ask(policy, count_visible(inputs), inputs.stats_dtype)
    heads = inputs.query.shape[1:3] if about.by_head else (1, 1)
    queries = inputs.query.shape[3] if inputs.causal else 1
    rows = (*heads, queries)
    answer: Tensor | float | None = _fixed_factor(
        policy,  # type: ignore[arg-type]  # it is hashable
        rows,
        keys,
        inputs.stats_dtype,
        inputs.query.device,
    )
    return answer


def _is_hashable(policy: Policy) -> bool:
    """Return whether a policy can be a key: a frozen dataclass may hold a list."""
    try:
        hash(policy)
    except TypeError:
        return False
    return True


def _ask(policy: Policy, count: Int[Tensor, "*rows"], dtype: torch.dtype) -> Float[Tensor, "*rows"]:
    return inverse_temperatures(policy, torch.zeros_like(count, dtype=dtype), count)


@functools.lru_cache(maxsize=256)
def _fixed_factor(
    policy: Policy, rows: tuple[int, int, int], keys: int, dtype: torch.dtype, device: torch.device
) -> Tensor | float | None:
    """Return what `length_factor` does; `rows` is (kv_heads, group, query) of the answer.

    Several queries are those of a causal call; a single one stands for all rows, and sees all keys.
    """
    about = traits(policy)
    # A policy for arrays of any library is asked on the CPU, where its answer can be read.
    where = torch.device("cpu") if about.any_library else device
    # A tensor that is made in inference mode cannot be used in training later.
    with torch.inference_mode(False), torch.no_grad():
        place = torch.arange(1, rows[2] + 1, dtype=torch.int32, device=where).clamp(max=keys)
        count = place if rows[2] > 1 else torch.full_like(place, keys)
        factor = _ask(policy, count.expand(1, *rows).contiguous(), dtype)
        if about.any_library:
            if bool((factor == 1).all()):
                return None
            if factor.numel() == 1:
                return float(factor)
        return factor.to(device)
