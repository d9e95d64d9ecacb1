"""Test whether the Triton kernels work on the GPU at hand, before `auto` uses them.

A GPU may be too small or too old for a kernel, and a compiler may be wrong. So before the first use
with a type and head size, a small call with every option is computed by the kernels and by another
implementation, with gradients. If it fails or differs, `auto` does not use the kernels. A call with
`impl="triton"` is not tested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sharpmax.policies import Polynomial
from sharpmax.torch.interface import Inputs, prepare_inputs
from sharpmax.torch.triton import attention

SHARPENING = Polynomial((0.1, 0.3, 0.9), threshold=0.2)
LARGEST_ERROR = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Relative to the largest number of the right answer."""

Attend = Callable[..., tuple[Any, Any]]
"""attend(inputs, policy, stats) -> output, statistics"""


def passes(inputs: Inputs, expected: Attend) -> bool:
    """Tell whether the kernels agree with `expected` for this device, type and head size."""
    query, value = inputs.query, inputs.value
    size = query.shape[-1] if value is None else value.shape[-1]
    return _passes(expected, query.device, query.dtype, query.shape[-1], size)


@functools.cache
def _passes(
    expected: Attend, device: torch.device, dtype: torch.dtype, dim: int, size: int
) -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        try:
            ours = _answers(attention.attend, device, dtype, dim, size)
        except Exception:  # compilers and drivers may raise anything
            return False
        theirs = _answers(expected, device, dtype, dim, size)
    largest = LARGEST_ERROR[dtype]
    return all(
        bool((mine.float() - right.float()).abs().max() <= largest * right.float().abs().max())
        for mine, right in zip(ours, theirs, strict=True)
    )


def _answers(
    attend: Attend, device: torch.device, dtype: torch.dtype, dim: int, size: int
) -> list[Tensor]:
    """Return output, entropy and gradients for 40 queries and keys, two heads that share keys."""
    shapes = ((1, 2, 40, dim), (1, 1, 40, dim), (1, 1, 40, size), (40, 40), (2,))
    query, key, value, bias, sinks = tensors = [
        # Irregular numbers that do not advance anyone's random generator.
        torch.arange(1, torch.Size(shape).numel() + 1, device=device)
        .mul(index + 1.7)
        .square()
        .sin()
        .reshape(shape)
        .to(dtype)
        .requires_grad_()
        for index, shape in enumerate(shapes)
    ]
    options: dict[str, Any] = {"attn_mask": bias, "is_causal": True, "window": 20}
    options |= {"softcap": 3.0, "sinks": sinks, "enable_gqa": True}
    inputs = prepare_inputs(query, key, value, **options)
    output, stats = attend(inputs, SHARPENING, True)
    loss = output.float().square().sum() + stats.entropy.sum()
    return [output.detach(), stats.entropy.detach(), *torch.autograd.grad(loss, tensors)]
