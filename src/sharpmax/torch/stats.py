"""What attention can say about each row without giving the row itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sharpmax.ops import SoftmaxState
from sharpmax.torch.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class AttentionStats:
    """Statistics of each row of logits before it is sharpened, [*batch, heads, query].

    In float32, or float64 for float64 inputs, and differentiable. With sinks they describe the keys
    alone; a head of sink logit z gives the sink 1 / (1 + exp(log_sum_exp - z)) of an unsharpened
    row.
    """

    entropy: Float[Tensor, "*batch heads query"]
    """Entropy of the softmax over the visible keys, in nats; 0 without any."""
    log_sum_exp: Float[Tensor, "*batch heads query"]
    """log of the sum of exp(logit) over the visible keys; -inf without any."""
    count: Int[Tensor, "*batch heads query"]
    """How many keys the query can see."""
    inverse_temperature: Float[Tensor, "*batch heads query"]
    """What the policy answered: the factor on the row's logits."""

    def __init__(
        self,
        entropy: Tensor,
        log_sum_exp: Tensor,
        count: Tensor,
        inverse_temperature: Tensor,
        extremes: Callable[[], tuple[Tensor, Tensor]],
    ) -> None:
        self.entropy = entropy
        self.log_sum_exp = log_sum_exp
        self.count = count
        self.inverse_temperature = inverse_temperature
        self._find_extremes = extremes

    @classmethod
    def of(
        cls, problem: Problem, state: SoftmaxState, inverse_temperature: Tensor
    ) -> AttentionStats:
        """From the whole state of each row, in the caller's shape."""
        return cls(
            entropy=problem.restore(state.entropy),
            log_sum_exp=problem.restore(state.log_sum_exp),
            count=problem.restore(state.count),
            inverse_temperature=problem.restore(inverse_temperature),
            extremes=lambda: (problem.restore(state.max), problem.restore(state.min)),
        )

    @cached_property
    def _extremes(self) -> tuple[Tensor, Tensor]:
        # Fused kernels do not return them, and finding them takes a product of queries and keys of
        # its own; who does not read them should not pay for them.
        extremes = self._find_extremes()
        del self._find_extremes  # it holds queries and keys
        return extremes

    @property
    def max_logit(self) -> Float[Tensor, "*batch heads query"]:
        """The largest visible logit; -inf without any. With `impl="fused"`, and with
        `impl="triton"` under autograd, the first read of this or of `min_logit` costs a pass over
        the keys.
        """
        return self._extremes[0]

    @property
    def min_logit(self) -> Float[Tensor, "*batch heads query"]:
        """The smallest visible logit; +inf without any."""
        return self._extremes[1]

    @property
    def max_weight(self) -> Float[Tensor, "*batch heads query"]:
        """The largest weight before sharpening; 0 without keys."""
        seen = self.count > 0
        return torch.where(seen, (self.max_logit - self.log_sum_exp).exp(), 0.0)

    @property
    def spread(self) -> Float[Tensor, "*batch heads query"]:
        """max_logit - min_logit, the delta of the paper's bounds; 0 without keys."""
        return torch.where(self.count > 0, self.max_logit - self.min_logit, 0.0)

    @property
    def effective_items(self) -> Float[Tensor, "*batch heads query"]:
        """exp(entropy): over how many equal keys the row would be as spread; 0 without keys."""
        return torch.where(self.count > 0, self.entropy.exp(), 0.0)

    def __repr__(self) -> str:
        return f"AttentionStats(entropy={self.entropy!r}, count={self.count!r}, ...)"


class AttentionOutput(NamedTuple):
    """What `attention` returns."""

    output: Float[Tensor, "*batch heads query value_dim"]
    stats: AttentionStats
