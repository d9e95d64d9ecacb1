"""Adaptive attention on a CPU by one pass over the keys: `sharpmax.cpu` on tensors.

Tensors are not copied, except to float32: half precision is computed in float32. Gradients, dropout
and float64 are left to the other implementations.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sharpmax.policies import Policy, traits
from sharpmax.torch.interface import AttentionStats, Inputs

REQUIRED = ("numba", "scipy", "threadpoolctl")


@cache
def missing_package() -> str | None:
    """Return the first required package that is not installed."""
    return next((name for name in REQUIRED if importlib.util.find_spec(name) is None), None)


def refusal(inputs: Inputs, policy: Policy) -> str | None:
    """Return which part of the call this implementation does not support, or None."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return "tracing by torch.compile or torch.func"
    missing = missing_package()
    if missing is not None:
        return f"running without {missing}: pip install 'sharpmax[cpu]'"
    if not all(type(one) in (Tensor, torch.nn.Parameter) for one in (inputs.query, inputs.key)):
        return f"a {type(inputs.query).__name__}"
    if inputs.query.device.type != "cpu":
        return f"tensors on {inputs.query.device.type}"
    if inputs.stats_dtype != torch.float32:
        return f"{inputs.query.dtype}"
    if inputs.needs_gradient:
        return "gradients"
    if inputs.dropout:
        return f"dropout_p={inputs.dropout}"
    return None


def attend(
    inputs: Inputs, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None]:
    """Return the output if there are values and statistics if asked; `refusal` must be None."""
    from sharpmax.cpu import blockwise  # imported here: numba takes a second

    threads = torch.get_num_threads()
    answer = blockwise.attend(_to_arrays(inputs), _ArrayPolicy(policy), threads, stats=stats)
    output = None
    if answer.output is not None:
        output = torch.from_numpy(answer.output).view(*inputs.rows, answer.output.shape[-1])
        if inputs.query.dtype != torch.float32:
            output = output.to(inputs.query.dtype)
    if not stats:
        return output, None
    entropy, log_sum_exp, count, factor, maximum, minimum = (
        torch.from_numpy(array).reshape(inputs.rows) for array in answer.stats
    )
    return output, AttentionStats(
        entropy=entropy,
        log_sum_exp=log_sum_exp,
        count=count,
        inverse_temperature=factor,
        extremes=lambda: (maximum, minimum),
    )


class _ArrayPolicy:
    """Call a policy with NumPy arrays if it takes those of any library, else with tensors."""

    __slots__ = ("by_head", "learned", "needs_entropy", "stands_for", "takes_arrays")

    def __init__(self, policy: Policy) -> None:
        about = traits(policy)
        self.stands_for = policy
        self.by_head = about.by_head
        self.learned = about.learned
        self.needs_entropy = about.needs_entropy
        self.takes_arrays = about.any_library

    def __call__(self, entropy: Any, count: Any, /) -> Any:
        if self.takes_arrays:
            return self.stands_for(entropy, count)
        with torch.no_grad():
            answer = self.stands_for(*map(torch.from_numpy, (entropy, count)))
        return answer.numpy() if isinstance(answer, Tensor) else answer


def _to_arrays(inputs: Inputs) -> Any:
    """Return the call as `sharpmax.cpu.blockwise.Arrays`."""
    from sharpmax.cpu.blockwise import Arrays

    shape = (*inputs.query.shape[:4], inputs.key.shape[2])

    def broadcast(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.detach().expand(shape).numpy()

    def dense(tensor: Tensor) -> Any:
        return _to_array(tensor if tensor.is_contiguous() else tensor.contiguous())

    bias = inputs.bias
    return Arrays(
        query=_to_array(inputs.query),
        key=dense(inputs.key),
        value=None if inputs.value is None else dense(inputs.value),
        mask=broadcast(inputs.mask),
        bias=None if bias is None else broadcast(bias.float()),
        lowest=inputs.hiding_bias,
        causal=inputs.causal,
        window=inputs.window,
        first_key=inputs.first_key,
        scale=inputs.scale,
        softcap=inputs.softcap,
        sinks=None if inputs.sinks is None else _to_array(inputs.sinks),
    )


def _to_array(tensor: Tensor) -> Any:
    """Return the numbers in float32, without a copy if they are."""
    if tensor.dtype != torch.float32:
        tensor = tensor.float()
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()
