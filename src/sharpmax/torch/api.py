"""Attention functions for PyTorch, and the choice of an implementation.

The function name says what is computed, `impl` says how:

- `"reference"`: readable, holds the whole matrix; the specification, and the only one that takes a
  normaliser.
- `"streaming"`: plain torch by blocks of rows; every option, device and type.
- `"cpu"`: compiled for the CPU, one pass over the keys; no gradients.
- `"fused"`: two calls of a fused kernel that returns the log-sum-exp. A single query per head
  (decoding) runs as `streaming`, which reads the keys once; so do numbers that are not finite.
- `"sdpa"`: torch's own function on a scaled query, for policies of the length alone.
- `"triton"`: two passes of our own CUDA kernels.
- `"auto"`: see `_choose_automatically`.

Each implementation is a module with `attend(inputs, policy, ...)`, and all but the first two have a
`refusal(inputs, ...)` that names what they cannot do. An implementation requested by name runs or
raises. Implementations do not import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sharpmax.policies import PAPER, Policy, ask, needs_entropy, needs_rows, traits
from sharpmax.torch import cpu, fused, reference, sdpa, streaming
from sharpmax.torch.interface import AttentionOutput, AttentionStats, Inputs, prepare_inputs
from sharpmax.torch.reference import Normaliser
from sharpmax.torch.triton import attention as triton
from sharpmax.torch.triton import trial

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    # Any shape that broadcasts to the logits, [*batch, heads, query, key].
    Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]

IMPLEMENTATIONS = ("auto", "reference", "streaming", "fused", "sdpa", "cpu", "triton")


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch_heads query dim"],
    key: Float[Tensor, "*#kv_batch_heads key dim"],
    value: Float[Tensor, "*#kv_batch_heads key value_dim"],
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
) -> Float[Tensor, "... query value_dim"]:
    """Compute attention whose rows are sharpened according to their entropy.

    Softmax attention spreads thinner as inputs grow. Replace
    `torch.nn.functional.scaled_dot_product_attention` by this function, argument by argument, to
    sharpen each row by a factor that a policy computes from its entropy and length:

        output_i = sum_j softmax_j(b_i * s_ij) * v_j,    b_i = policy(H_i, n_i)
        s_ij = scale * <q_i, k_j>, with a softcap c * tanh(s_ij / c), plus the additive mask

    H_i is the entropy of softmax(s_i) in nats and n_i the number of keys that query i can see
    (arXiv 2410.01104). A query that sees no key gives zeros.

    Args:
        query: [*batch, heads, query, dim]. Batch axes broadcast; batch and heads may be missing.
        key: [*batch, kv_heads, key, dim].
        value: [*batch, kv_heads, key, value_dim].
        attn_mask: Any shape that broadcasts to [*batch, heads, query, key]. Boolean: True where a
            key may be seen. Floating: added to the logit and sharpened with it; -1e38 or less, and
            the lowest number of its type, hide the key.
        dropout_p: Probability of dropping a weight.
        is_causal: Query i sees keys 0 to i. May be combined with a mask.
        scale: Factor on the products; by default 1 / sqrt(dim).
        enable_gqa: Let query heads share key heads.
        softcap: Replace a logit s by softcap * tanh(s / softcap), before the mask is added.
        sinks: One logit per head that takes part in the normalisation, is not sharpened, and whose
            weight goes nowhere.
        window: Query i sees only keys less than this far from i: with `is_causal`, the last
            `window` keys.
        policy: Function of (entropy, count) that returns the inverse temperature of each row.
            `sharpmax.Constant(1.0)` is plain attention.
        normaliser: Function `normaliser(logits, where=, axis=-1)` that replaces the softmax.
        impl: How to compute it: "auto", "reference", "streaming", "fused", "sdpa", "cpu" or
            "triton".

    Returns:
        The output, [*batch, heads, query, value_dim], in the type of the query.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit, or a number is out of range.
        NotImplementedError: If the implementation requested by name lacks an option.

    Examples:
        >>> q, k, v = torch.randn(3, 1, 8, 1000, 64)
        >>> sharp = scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    inputs = prepare_inputs(
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
    return _run(inputs, policy, normaliser, impl, stats=False)[0]


def attention(
    query: Float[Tensor, "*batch_heads query dim"],
    key: Float[Tensor, "*#kv_batch_heads key dim"],
    value: Float[Tensor, "*#kv_batch_heads key value_dim"],
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
    """Compute `scaled_dot_product_attention` and return the statistics of each row with it.

    Use it to see how dispersed attention is, and by how much the policy sharpened it, in the same
    call that computes the output.

    Args:
        query: [*batch, heads, query, dim]. Batch axes broadcast; batch and heads may be missing.
        key: [*batch, kv_heads, key, dim].
        value: [*batch, kv_heads, key, value_dim].
        attn_mask: Boolean (True where a key may be seen) or added to the logits.
        dropout_p: Probability of dropping a weight.
        is_causal: Query i sees keys 0 to i. May be combined with a mask.
        scale: Factor on the products; by default 1 / sqrt(dim).
        enable_gqa: Let query heads share key heads.
        softcap: Replace a logit s by softcap * tanh(s / softcap).
        sinks: One logit per head that takes part in the normalisation and is not sharpened.
        window: Query i sees only keys less than this far from i.
        policy: Function of (entropy, count) that returns the inverse temperature of each row.
        normaliser: Function `normaliser(logits, where=, axis=-1)` that replaces the softmax.
        impl: How to compute it: "auto", "reference", "streaming", "fused", "sdpa", "cpu" or
            "triton".

    Returns:
        The output and `AttentionStats`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit, or a number is out of range.
        NotImplementedError: If the implementation requested by name lacks an option.

    Examples:
        >>> q, k, v = torch.randn(3, 1, 8, 1000, 64)
        >>> output, stats = attention(q, k, v, is_causal=True)
        >>> stats.entropy.shape
        torch.Size([1, 8, 1000])
    """
    inputs = prepare_inputs(
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
    return AttentionOutput(*_run(inputs, policy, normaliser, impl, stats=True))


def attention_stats(
    query: Float[Tensor, "*batch_heads query dim"],
    key: Float[Tensor, "*kv_batch_heads key dim"],
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
    """Measure how dispersed each row of attention is, without computing the output.

    Fused kernels do not return the entropy, and computing it from the weights needs the matrix of
    weights. This function needs neither.

    Args:
        query: [*batch, heads, query, dim]. Batch axes broadcast; batch and heads may be missing.
        key: [*batch, kv_heads, key, dim].
        attn_mask: Boolean (True where a key may be seen) or added to the logits.
        is_causal: Query i sees keys 0 to i. May be combined with a mask.
        scale: Factor on the products; by default 1 / sqrt(dim).
        enable_gqa: Let query heads share key heads.
        softcap: Replace a logit s by softcap * tanh(s / softcap).
        window: Query i sees only keys less than this far from i.
        policy: Function of (entropy, count); its answer is reported as `inverse_temperature`.
        impl: How to compute it: "auto", "reference", "streaming", "fused", "sdpa", "cpu" or
            "triton".

    Returns:
        Statistics of each row before sharpening.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit, or a number is out of range.
        NotImplementedError: If the implementation requested by name lacks an option.

    Examples:
        >>> q, k = torch.randn(2, 1, 8, 1000, 64)
        >>> attention_stats(q, k, is_causal=True).effective_items.shape
        torch.Size([1, 8, 1000])
    """
    inputs = prepare_inputs(
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
    return _run(inputs, policy, None, impl, stats=True)[1]


def _run(
    inputs: Inputs, policy: Policy, normaliser: Normaliser | None, impl: str, *, stats: bool
) -> tuple[Any, Any]:
    """Run the implementation; return output (None without values) and statistics, if asked."""
    if _is_learned(policy, inputs):
        inputs = inputs._replace(learned_policy=True)
    chosen = _choose(inputs, policy, normaliser, impl, stats=stats)
    with inputs.full_precision():
        if chosen == "reference":
            return reference.attend(inputs, policy, normaliser)
        if chosen == "cpu":
            found = cpu.attend(inputs, policy, stats)
            return streaming.attend(inputs, policy, stats) if found is None else found
        if chosen == "triton":
            return triton.attend(inputs, policy, stats)
        if chosen == "sdpa":
            output = sdpa.attend(inputs, policy)
            return streaming.attend(inputs, policy, stats) if output is None else (output, None)
        single_query = inputs.query.shape[3] == 1 and inputs.value is not None
        if chosen == "streaming" or single_query:
            return streaming.attend(inputs, policy, stats)
        answer = fused.attend(inputs, policy, stats)
        return streaming.attend(inputs, policy, stats) if answer is None else answer


def _is_learned(policy: Policy, inputs: Inputs) -> bool:
    """Tell whether the policy has a parameter that needs a gradient.

    The policy is called on one row per head, and only if nothing else needs a gradient.
    """
    fixed = not traits(policy).learned or not callable(policy) or needs_rows(policy)
    if fixed or inputs.needs_gradient or not torch.is_grad_enabled():
        return False
    shape = (1, *inputs.query.shape[1:3], 1)
    row = torch.ones(shape, dtype=inputs.stats_dtype, device=inputs.query.device)
    answer = ask(policy, row, row.to(torch.int32), row)
    return isinstance(answer, Tensor) and answer.requires_grad


def _choose(
    inputs: Inputs, policy: Policy, normaliser: Normaliser | None, impl: str, *, stats: bool
) -> str:
    """Return the implementation to run; raise if the one requested by name cannot."""
    if impl not in IMPLEMENTATIONS:
        expected = ", ".join(map(repr, IMPLEMENTATIONS))
        raise ValueError(f"impl must be one of {expected}, got {impl!r}")
    if not callable(policy):
        raise TypeError(
            f"policy must be a function of (entropy, count), got {policy!r}; "
            "sharpmax.Constant(1.0) is plain attention"
        )
    if normaliser is not None:
        _check_normaliser(inputs, policy, impl)
        return "reference"
    if impl == "auto":
        return _choose_automatically(inputs, policy, stats=stats)
    reason = _policy_refusal(inputs, policy, impl)
    if reason is not None:
        pass
    elif impl == "cpu":
        reason = cpu.refusal(inputs, policy, stats)
    elif impl == "fused":
        reason = fused.refusal(inputs)
    elif impl == "sdpa":
        reason = "statistics" if stats else sdpa.refusal(inputs, policy)
    elif impl == "triton":
        reason = triton.refusal(inputs)
    if reason is not None:
        raise NotImplementedError(
            f'impl="{impl}" does not support {reason}; use impl="streaming" or impl="auto"'
        )
    return impl


def _choose_automatically(inputs: Inputs, policy: Policy, *, stats: bool) -> str:
    """Return the fastest implementation that supports the call.

    If the entropy is not needed: `sdpa`. If it is: `cpu`; where it cannot, `streaming` for an
    output on a CPU without gradients, because `fused` would need two calls. Otherwise `fused`;
    then, on CUDA, `triton` if a small trial on this GPU was right; then `streaming`.
    """
    entropy_needed = stats or needs_entropy(policy)
    if not entropy_needed and sdpa.refusal(inputs, policy) is None:
        return "sdpa"

    def can_ask(impl: str) -> bool:
        return _policy_refusal(inputs, policy, impl) is None

    if entropy_needed and can_ask("cpu") and cpu.refusal(inputs, policy, stats) is None:
        return "cpu"
    device = inputs.query.device.type
    two_calls = entropy_needed and inputs.value is not None
    if device == "cpu" and two_calls and not inputs.needs_gradient:
        return "streaming"
    if can_ask("fused") and fused.refusal(inputs) is None:
        return "fused"
    if device == "cuda" and can_ask("triton") and triton.refusal(inputs) is None:
        return "triton" if trial.passes(inputs, streaming.attend) else "streaming"
    return "streaming"


def _policy_refusal(inputs: Inputs, policy: Policy, impl: str) -> str | None:
    """Return what a policy needs and an implementation does not compute, or None."""
    if impl not in ("fused", "cpu", "triton"):
        return None
    if needs_rows(policy):
        return "a policy that looks at whole rows of logits"
    if traits(policy).needs_varentropy:
        if impl == "fused":
            return "a policy that looks at the varentropy"
        if inputs.needs_gradient:
            return "gradients of a policy that looks at the varentropy"
    return None


def _check_normaliser(inputs: Inputs, policy: Policy, impl: str) -> None:
    """Refuse what cannot be combined with a normaliser, which needs whole rows of logits."""
    if impl not in ("auto", "reference"):
        raise NotImplementedError(
            f'impl="{impl}" does not support a normaliser; use impl="reference"'
        )
    if policy is not PAPER:
        raise ValueError(
            f"normaliser cannot be combined with policy={policy!r}, which sharpens the softmax "
            "that the normaliser replaces; pass only one of them"
        )
    if inputs.sinks is not None:
        raise NotImplementedError(
            "sinks are part of softmax and cannot be combined with a normaliser"
        )
