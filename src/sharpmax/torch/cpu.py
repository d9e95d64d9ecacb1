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

from sharpmax.policies import Constant, Policy, differs_by_head, traits
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
    if differs_by_head(policy):
        return f"a policy that differs by head ({policy!r})"
    return None


def attend(
    inputs: Inputs, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None]:
    """Return the output if there are values and statistics if asked; `refusal` must be None."""
    from sharpmax.cpu import blockwise  # imported here: numba takes a second

    with torch.no_grad():
        answer = blockwise.attend(
            _to_arrays(inputs), _ArrayPolicy(policy), torch.get_num_threads(), stats=stats
        )
    output = None
    if answer.output is not None:
        output = inputs.restore_shape(torch.from_numpy(answer.output)).to(inputs.query.dtype)
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

    __slots__ = ("learned", "needs_entropy", "stands_for", "takes_arrays")

    def __init__(self, policy: Policy) -> None:
        about = traits(policy)
        self.stands_for = policy
        self.learned = about.learned
        self.needs_entropy = about.needs_entropy
        self.takes_arrays = about.any_library

    def __call__(self, entropy: Any, count: Any, /) -> Any:
        if isinstance(self.stands_for, Constant):
            return self.stands_for.inverse_temperature  # one number for all rows
        if self.takes_arrays:
            return self.stands_for(entropy, count)
        answer = self.stands_for(*map(torch.from_numpy, (entropy, count)))
        return answer.detach().numpy() if isinstance(answer, Tensor) else answer


def _to_arrays(inputs: Inputs) -> Any:
    """Return the call as `sharpmax.cpu.blockwise.Arrays`."""
    from sharpmax.cpu.blockwise import Arrays

    shape = (*inputs.query.shape[:4], inputs.key.shape[2])

    def broadcast(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.detach().expand(shape).numpy()

    def dense(tensor: Tensor) -> Any:
        return tensor.detach().float().contiguous().numpy()

    bias = inputs.bias
    return Arrays(
        query=inputs.query.detach().float().numpy(),
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
        sinks=None if inputs.sinks is None else inputs.sinks.detach().float().numpy(),
    )
