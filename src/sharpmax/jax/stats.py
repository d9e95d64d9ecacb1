"""Statistics of attention rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from sharpmax.ops import SoftmaxState

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class AttentionStats(NamedTuple):
    """Hold the statistics of each row of logits before it is sharpened.

    The arrays have the layout of the queries, [*batch, query, heads]. They are float32, or float64
    for float64 inputs, and differentiable.
    """

    entropy: Float[Array, "*batch query heads"]
    """Entropy of the softmax over the visible keys, in nats; 0 without any."""
    log_sum_exp: Float[Array, "*batch query heads"]
    """log of the sum of exp(logit) over the visible keys; -inf without any."""
    max_logit: Float[Array, "*batch query heads"]
    """The largest visible logit; -inf without any."""
    min_logit: Float[Array, "*batch query heads"]
    """The smallest visible logit; +inf without any."""
    count: Int[Array, "*batch query heads"]  # type: ignore[assignment]  # hides tuple.count
    """The number of keys that the query can see."""
    inverse_temperature: Float[Array, "*batch query heads"]
    """The factor on the row's logits that the policy returned."""
    varentropy: Float[Array, "*batch query heads"]
    """Variance of log p under the softmax p, in square nats; 0 without any. The entropy falls by
    this much per unit of log(inverse temperature)."""

    @classmethod
    def of(cls, state: SoftmaxState, inverse_temperature: Array) -> AttentionStats:
        """Collect the statistics from the state of each row.

        Args:
            state: the softmax state over all keys.
            inverse_temperature: the factor that the policy returned.

        Returns:
            The statistics.
        """
        return cls(
            entropy=state.entropy,
            log_sum_exp=state.log_sum_exp,
            max_logit=state.max,
            min_logit=state.min,
            count=state.count,
            inverse_temperature=inverse_temperature,
            varentropy=state.varentropy,
        )

    @property
    def max_weight(self) -> Float[Array, "*batch query heads"]:
        """The largest weight before sharpening; 0 without keys."""
        seen = self.count > 0
        exponent = jnp.where(seen, self.max_logit, 0.0) - jnp.where(seen, self.log_sum_exp, 0.0)
        return jnp.where(seen, jnp.exp(exponent), 0.0)

    @property
    def spread(self) -> Float[Array, "*batch query heads"]:
        """max_logit - min_logit, the delta of the paper's bounds; 0 without keys."""
        return jnp.where(self.count > 0, self.max_logit - self.min_logit, 0.0)

    @property
    def effective_items(self) -> Float[Array, "*batch query heads"]:
        """exp(entropy), the number of equal weights with the same entropy; 0 without keys."""
        return jnp.where(self.count > 0, jnp.exp(self.entropy), 0.0)


class AttentionOutput(NamedTuple):
    """Hold the output of attention and the statistics of its rows."""

    output: Float[Array, "*batch query heads value_dim"]
    """The attended values, in the type of the query."""
    stats: AttentionStats
    """The statistics of each row before it is sharpened."""
