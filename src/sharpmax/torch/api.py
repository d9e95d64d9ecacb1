"""Attention for PyTorch that knows how dispersed it is: what users call.

The name of a function says what is computed, `impl` says how:

- `"reference"`: readable, holds the whole matrix; the specification, and any normaliser.
- `"streaming"`: plain torch by blocks of rows; every option, device and type.
- `"cpu"`: compiled for the CPU, one pass over the keys; without gradients, see `cpu.refusal`.
- `"fused"`: two calls of a fused kernel that returns the log-sum-exp; see `fused.refusal` for what
  it cannot do.
- `"triton"`: two passes of kernels of our own on CUDA; see `triton_attention.refusal`.
- `"auto"`: `reference` if a normaliser is given. Where the entropy is looked at, `cpu` if it can do
  all that is asked; if not, `streaming` for an output on a CPU without gradients, where it is the
  faster one. Else `fused` where it can do all that is asked; else, on CUDA, `triton` where it can
  (softcap, additive masks, windows, gradients with sinks) and a small trial on this GPU was right;
  else `streaming`.

An implementation asked for by name runs or raises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sharpmax.policies import PAPER, Policy, needs_entropy, traits
from sharpmax.torch import cpu, fused, reference, streaming, triton_attention, triton_trial
from sharpmax.torch.problem import Problem, pose
from sharpmax.torch.reference import Normaliser
from sharpmax.torch.stats import AttentionOutput, AttentionStats

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Mask = (
        Bool[Tensor, "*batch|1 heads|1 query|1 key|1"]
        | Float[Tensor, "*batch|1 heads|1 query|1 key|1"]
    )

IMPLEMENTATIONS = ("auto", "reference", "streaming", "fused", "cpu", "triton")


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch heads query dim"],
    key: Float[Tensor, "*batch kv_heads key dim"],
    value: Float[Tensor, "*batch kv_heads key value_dim"],
    attn_mask: Mask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    window: int | None = None,
    policy: Policy = PAPER,
    normaliser: Normaliser | None = None,
    impl: str = "auto",
) -> Float[Tensor, "*batch heads query value_dim"]:
    """Attention whose rows are sharpened by as much as their entropy asks for; in place of
    `torch.nn.functional.scaled_dot_product_attention`, argument by argument.

        output_i = sum_j softmax_j(b_i * s_ij) v_j,    b_i = policy(H_i, n_i)
        s_ij = scale * <q_i, k_j>, with a softcap c * tanh(s_ij / c), plus the additive mask

    H_i is the entropy of softmax(s_i) and n_i the number of keys that query i can see. A query that
    sees nothing gives zeros. A boolean mask is True where a key may be seen. An additive mask is
    part of the logit and sharpened with it; -inf, and the lowest number of its type, hide the key.
    `sinks` is one logit a head that takes part in the normalisation, is not sharpened, and whose
    weight goes nowhere. `is_causal` lets query i see keys 0 to i, and may be combined with a mask.
    `window` lets it see only keys less than that far from i: with `is_causal`, the last `window`.

    `policy=sharpmax.Constant(1.0)` is plain attention. `normaliser(logits, where=, axis=-1)`
    replaces the softmax altogether.
    """
    problem = pose(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        softcap=softcap,
        sinks=sinks,
        window=window,
    )
    output, _ = _dispatch(problem, policy, normaliser, impl, stats=False)
    return output


def attention(
    query: Float[Tensor, "*batch heads query dim"],
    key: Float[Tensor, "*batch kv_heads key dim"],
    value: Float[Tensor, "*batch kv_heads key value_dim"],
    *,
    attn_mask: Mask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    window: int | None = None,
    policy: Policy = PAPER,
    normaliser: Normaliser | None = None,
    impl: str = "auto",
) -> AttentionOutput:
    """The same as `scaled_dot_product_attention`, with the statistics of each row beside it."""
    problem = pose(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        softcap=softcap,
        sinks=sinks,
        window=window,
    )
    return AttentionOutput(*_dispatch(problem, policy, normaliser, impl, stats=True))


def attention_stats(
    query: Float[Tensor, "*batch heads query dim"],
    key: Float[Tensor, "*batch kv_heads key dim"],
    *,
    attn_mask: Mask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    window: int | None = None,
    policy: Policy = PAPER,
    impl: str = "auto",
) -> AttentionStats:
    """How spread out each row of attention is, without computing its output and without the matrix
    of weights: the entropy that fused kernels do not give.
    """
    problem = pose(
        query,
        key,
        None,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        softcap=softcap,
        window=window,
    )
    return _dispatch(problem, policy, None, impl, stats=True)[1]


def _dispatch(
    problem: Problem, policy: Policy, normaliser: Normaliser | None, impl: str, *, stats: bool
) -> tuple[Any, Any]:
    if _is_learned(policy, problem):
        problem = replace(problem, learned_policy=True)
    chosen = _choose(problem, policy, normaliser, impl, stats=stats)
    with problem.full_precision():
        if chosen == "reference":
            return reference.attend(problem, policy, normaliser)
        if chosen == "streaming":
            return streaming.attend(problem, policy, stats)
        if chosen == "cpu":
            return cpu.attend(problem, policy, stats)
        if chosen == "triton":
            return triton_attention.attend(problem, policy, stats)
        return fused.attend(problem, policy, stats)


def _is_learned(policy: Policy, problem: Problem) -> bool:
    """Whether the policy has a parameter that needs a gradient: asked of one row a head, and only
    where nothing else tells that gradients are wanted.
    """
    fixed = not traits(policy).learned or not callable(policy)
    if fixed or problem.differentiates or not torch.is_grad_enabled():
        return False
    shape = (1, *problem.query.shape[1:3], 1)
    row = torch.ones(shape, dtype=problem.wide, device=problem.query.device)
    answer = policy(row, row.to(torch.int32))
    return isinstance(answer, Tensor) and answer.requires_grad


def _choose(
    problem: Problem, policy: Policy, normaliser: Normaliser | None, impl: str, *, stats: bool
) -> str:
    if impl not in IMPLEMENTATIONS:
        expected = ", ".join(map(repr, IMPLEMENTATIONS))
        raise ValueError(f"impl must be one of {expected}, got {impl!r}")
    if not callable(policy):
        raise TypeError(
            f"policy must be a function of (entropy, count), got {policy!r}; "
            "sharpmax.Constant(1.0) is plain attention"
        )
    if normaliser is not None:
        return _only_reference(problem, policy, impl)
    if impl in ("reference", "streaming"):
        return impl
    looks = stats or needs_entropy(policy)
    if impl == "cpu" or (impl == "auto" and looks):
        reason = cpu.refusal(problem, policy)
        if reason is None:
            return "cpu"
        if impl == "cpu":
            raise _cannot(impl, reason)
    on_cpu = problem.query.device.type == "cpu"
    two_calls = looks and problem.value is not None
    if impl == "auto" and on_cpu and two_calls and not problem.differentiates:
        return "streaming"
    refusals = {"fused": fused.refusal, "triton": triton_attention.refusal}
    if impl in refusals:
        reason = refusals[impl](problem)
        if reason is not None:
            raise _cannot(impl, reason)
        return impl
    if fused.refusal(problem) is None:
        return "fused"
    on_cuda = problem.query.device.type == "cuda"
    if on_cuda and triton_attention.refusal(problem) is None and triton_trial.passes(problem):
        return "triton"
    return "streaming"


def _cannot(impl: str, reason: str) -> NotImplementedError:
    return NotImplementedError(
        f'impl="{impl}" cannot do {reason}; use impl="streaming" or leave the choice to "auto"'
    )


def _only_reference(problem: Problem, policy: Policy, impl: str) -> str:
    """A normaliser of the user's needs whole rows, and replaces the policy."""
    if impl not in ("auto", "reference"):
        raise NotImplementedError(f'impl="{impl}" cannot take a normaliser; use "reference"')
    if policy is not PAPER:
        raise ValueError(
            f"normaliser replaces the softmax that policy={policy!r} would sharpen: give one of "
            "them"
        )
    if problem.sinks is not None:
        raise NotImplementedError("sinks are a part of softmax and do not go with a normaliser")
    return "reference"
