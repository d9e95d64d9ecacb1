"""Whether the Triton kernels work on the GPU at hand, asked once before `auto` relies on them.

A GPU may be too small or too old for a kernel, and a compiler may err. So before the first use for
a type and head size, a small problem with every option is solved by them and by `streaming`, with
gradients; whatever fails or differs leaves `auto` with `streaming`. A name asked for is not tried.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sharpmax.policies import Polynomial
from sharpmax.torch import streaming, triton_attention
from sharpmax.torch.problem import Problem, pose

SHARPENING = Polynomial((0.1, 0.3, 0.9), threshold=0.2)
LARGEST_ERROR = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Of the largest number of the right answer."""


def passes(problem: Problem) -> bool:
    size = problem.query.shape[-1] if problem.value is None else problem.value.shape[-1]
    return _passes(problem.query.device, problem.query.dtype, problem.query.shape[-1], size)


@functools.cache
def _passes(device: torch.device, dtype: torch.dtype, dim: int, size: int) -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        try:
            ours = _answers(triton_attention, device, dtype, dim, size)
        except Exception:  # compilers and drivers raise what they like
            return False
        theirs = _answers(streaming, device, dtype, dim, size)
    largest = LARGEST_ERROR[dtype]
    return all(
        bool((mine.float() - its.float()).abs().max() <= largest * its.float().abs().max())
        for mine, its in zip(ours, theirs, strict=True)
    )


def _answers(
    implementation: ModuleType, device: torch.device, dtype: torch.dtype, dim: int, size: int
) -> list[Tensor]:
    """Output, entropy and gradients of 40 queries and keys in two heads that share keys."""
    shapes = ((1, 2, 40, dim), (1, 1, 40, dim), (1, 1, 40, size), (40, 40), (2,))
    query, key, value, bias, sinks = given = [
        # Numbers in no pattern that a mistake could hide in, and no draw from anybody's generator.
        torch.arange(1, torch.Size(shape).numel() + 1, device=device)
        .mul(place + 1.7)
        .square()
        .sin()
        .reshape(shape)
        .to(dtype)
        .requires_grad_()
        for place, shape in enumerate(shapes)
    ]
    options: dict[str, Any] = {"attn_mask": bias, "is_causal": True, "window": 20}
    options |= {"softcap": 3.0, "sinks": sinks, "enable_gqa": True}
    problem = pose(query, key, value, **options)
    output, stats = implementation.attend(problem, SHARPENING, True)
    loss = output.float().square().sum() + stats.entropy.sum()
    return [output.detach(), stats.entropy.detach(), *torch.autograd.grad(loss, given)]
