"""Adaptive attention on a CPU by one pass over the keys: `sharpmax.cpu` on tensors.

Tensors are not copied, except to float32: half precision is computed in float32. Dropout, float64
and gradients of statistics, sinks and biases are left to the other implementations.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sharpmax.policies import Policy, inverse_temperatures, traits
from sharpmax.torch import products
from sharpmax.torch.interface import AttentionStats, Inputs

REQUIRED = ("numba", "scipy", "threadpoolctl")


@cache
def missing_package() -> str | None:
    """Return the first required package that is not installed."""
    return next((name for name in REQUIRED if importlib.util.find_spec(name) is None), None)


def refusal(inputs: Inputs, policy: Policy, stats: bool) -> str | None:
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
    if inputs.dropout:
        return f"dropout_p={inputs.dropout}"
    if inputs.needs_gradient:
        if stats:
            return "gradients of statistics"
        if inputs.sinks is not None:
            return "gradients with sinks"
        if inputs.bias is not None and inputs.bias.requires_grad:
            return "gradients of attn_mask"
        if inputs.bias is not None and inputs.softcap is not None:
            return "gradients with softcap and an additive attn_mask"
    return None


def attend(
    inputs: Inputs, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None] | None:
    """Return the output if there are values and statistics if asked; `refusal` must be None.

    None if gradients are asked for and a number is not finite: those of hidden keys would spread.
    """
    from sharpmax.cpu import blockwise  # imported here: numba takes a second

    if inputs.needs_gradient:
        differentiable = _attend_with_gradients(inputs, policy)
        return None if differentiable is None else (differentiable, None)
    threads = torch.get_num_threads()
    answer = blockwise.attend(_to_arrays(inputs), _ArrayPolicy(policy), threads, stats=stats)
    output = None
    if answer.output is not None:
        output = torch.from_numpy(answer.output).view(*inputs.rows, answer.output.shape[-1])
        if inputs.query.dtype != torch.float32:
            output = output.to(inputs.query.dtype)
    if not stats:
        return output, None
    entropy, log_sum_exp, count, factor, maximum, minimum, varentropy = (
        torch.from_numpy(array).reshape(inputs.rows) for array in answer.stats
    )
    return output, AttentionStats(
        entropy=entropy,
        log_sum_exp=log_sum_exp,
        count=count,
        inverse_temperature=factor,
        details=lambda: (varentropy, maximum, minimum),
    )


def _attend_with_gradients(inputs: Inputs, policy: Policy) -> Tensor | None:
    """Return the output with its graph; None if a number is not finite."""
    from sharpmax.cpu import blockwise

    if not products.are_finite(inputs.query, inputs.key, inputs.value):
        return None
    threads = torch.get_num_threads()
    with torch.no_grad():
        arrays = _to_arrays(inputs)
        answer = blockwise.attend(arrays, _ArrayPolicy(policy), threads, stats=True)
        output, numbers = torch.from_numpy(answer.output), torch.from_numpy(answer.numbers)
        count = torch.from_numpy(answer.counts)
        entropy, largest = numbers[0], numbers[3]
        if not products.are_finite(output, entropy, largest.clamp(min=0)):
            return None
    # The policy's own parameters get their gradients through this factor, which adds nothing else.
    factor = inverse_temperatures(policy, entropy, count) if traits(policy).learned else None
    slope = _policy_slope(policy, entropy, count)
    tensors = (inputs.query, inputs.key, inputs.value, factor)
    # Autograd keeps the three tensors, and notices if they are changed before the backward pass.
    nothing: Any = None
    options = inputs._replace(query=nothing, key=nothing, value=nothing)
    found: Tensor = _Differentiable.apply(*tensors, output, numbers, slope, options)  # type: ignore[no-untyped-call]
    return found.view(*inputs.rows, found.shape[-1])


def _policy_slope(policy: Policy, entropy: Tensor, count: Tensor) -> Tensor:
    """Return the derivative of each row's inverse temperature by its entropy."""
    with torch.enable_grad():
        point = entropy.detach().requires_grad_()
        factor = inverse_temperatures(policy, point, count)
        if not factor.requires_grad:
            return torch.zeros_like(entropy)
        (slope,) = torch.autograd.grad(factor.sum(), point, allow_unused=True)
    return torch.zeros_like(entropy) if slope is None else slope


class _Differentiable(torch.autograd.Function):
    """An output that is computed already, and its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        factor: Tensor | None,
        output: Tensor,
        numbers: Tensor,
        slope: Tensor,
        inputs: Inputs,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, output, numbers, slope)
        ctx.inputs = inputs
        return output.to(query.dtype) if query.dtype != torch.float32 else output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        from sharpmax.cpu import gradients

        if torch.is_grad_enabled():  # create_graph=True: what follows would be a constant
            raise NotImplementedError(
                'impl="cpu" has no second derivatives; use impl="streaming", which has'
            )
        query, key, value, output, numbers, slope = ctx.saved_tensors
        arrays = _to_arrays(ctx.inputs._replace(query=query, key=key, value=value))
        found = gradients.differentiate(
            *(arrays, numbers.numpy(), slope.numpy(), output.numpy()),
            *(_to_array(gradient.contiguous()), torch.get_num_threads()),
        )
        by_tensor = [
            torch.from_numpy(part).to(tensor.dtype)
            for part, tensor in zip(found[:3], (query, key, value), strict=True)
        ]
        d_factor = torch.from_numpy(found.factor) if ctx.needs_input_grad[3] else None
        return (*by_tensor, d_factor, None, None, None, None)


class _ArrayPolicy:
    """Call a policy with NumPy arrays if it takes those of any library, else with tensors."""

    __slots__ = (
        *("by_head", "learned", "needs_entropy", "needs_varentropy", "stands_for", "takes_arrays"),
    )

    def __init__(self, policy: Policy) -> None:
        about = traits(policy)
        self.stands_for = policy
        self.by_head = about.by_head
        self.learned = about.learned
        self.needs_entropy = about.needs_entropy
        self.needs_varentropy = about.needs_varentropy
        self.takes_arrays = about.any_library

    def __call__(self, *known: Any) -> Any:
        policy: Any = self.stands_for
        if self.takes_arrays:
            return policy(*known)
        with torch.no_grad():
            answer = policy(*map(torch.from_numpy, known))
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
