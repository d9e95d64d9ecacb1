"""Adaptive attention on a CPU by one pass over the keys: `sharpmax.cpu` on tensors, without copies.

Half precision is computed in float32. Gradients, dropout and float64 are for the other
implementations.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sharpmax.policies import Policy, differs_by_head, traits
from sharpmax.torch.problem import Problem
from sharpmax.torch.stats import AttentionStats

NEEDED = ("numba", "scipy", "threadpoolctl")


@cache
def missing() -> str | None:
    """The first of the packages that the kernel needs and that is not installed."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), None)


def refusal(problem: Problem, policy: Policy) -> str | None:
    """What of the problem this implementation cannot do; None if it can do all of it."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return "what torch.compile or torch.func is tracing"
    lacking = missing()
    if lacking is not None:
        return f"anything without {lacking}: pip install 'sharpmax[cpu]'"
    if not all(type(one) in (Tensor, torch.nn.Parameter) for one in (problem.query, problem.key)):
        return f"a {type(problem.query).__name__}"
    if problem.query.device.type != "cpu":
        return f"tensors on {problem.query.device.type}"
    if problem.wide != torch.float32:
        return f"{problem.query.dtype}"
    if problem.differentiates:
        return "gradients"
    if problem.dropout:
        return f"dropout_p={problem.dropout}"
    if differs_by_head(policy):
        return f"a policy that differs by head ({policy!r})"
    return None


def attend(
    problem: Problem, policy: Policy, stats: bool
) -> tuple[Tensor | None, AttentionStats | None]:
    """Output if there are values, statistics if asked; `refusal` must have been None."""
    from sharpmax.cpu import rows  # here, since numba takes its second

    with torch.no_grad():
        found = rows.run(_work(problem), _Asked(policy), torch.get_num_threads(), stats=stats)
    output = None
    if found.output is not None:
        output = problem.restore(torch.from_numpy(found.output)).to(problem.query.dtype)
    if not stats:
        return output, None
    entropy, total, count, factor, maximum, minimum = (
        problem.restore(torch.from_numpy(one)) for one in found.stats
    )
    return output, AttentionStats(
        entropy=entropy,
        log_sum_exp=total,
        count=count,
        inverse_temperature=factor,
        extremes=lambda: (maximum, minimum),
    )


class _Asked:
    """Call a policy with NumPy arrays if it takes those of any library, else with tensors."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.needs_entropy = traits(policy).needs_entropy
        self.takes_arrays = traits(policy).any_library

    def __call__(self, entropy: Any, count: Any, /) -> Any:
        if self.takes_arrays:
            return self.policy(entropy, count)
        answer = self.policy(*map(torch.from_numpy, (entropy, count)))
        return answer.detach().numpy() if isinstance(answer, Tensor) else answer


def _work(problem: Problem) -> Any:
    from sharpmax.cpu.rows import Work

    shape = (*problem.query.shape[:4], problem.key.shape[2])

    def spread(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.detach().expand(shape).numpy()

    def dense(tensor: Tensor) -> Any:
        return tensor.detach().float().contiguous().numpy()

    bias = problem.bias
    return Work(
        query=problem.query.detach().float().numpy(),
        key=dense(problem.key),
        value=None if problem.value is None else dense(problem.value),
        mask=spread(problem.mask),
        bias=None if bias is None else spread(bias.float()),
        lowest=-torch.inf if bias is None else torch.finfo(bias.dtype).min,
        causal=problem.causal,
        window=problem.window,
        first_key=problem.first_key,
        scale=problem.scale,
        softcap=problem.softcap,
        sinks=None if problem.sinks is None else problem.sinks.detach().float().numpy(),
    )
