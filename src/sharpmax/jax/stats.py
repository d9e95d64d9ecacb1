"""What attention can say about each row without giving the row itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from sharpmax.ops import SoftmaxState

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class AttentionStats(NamedTuple):
    """Statistics of each row of logits before it is sharpened, laid out as the queries are,
    [*batch, query, heads]; in float32, or float64 for float64 inputs, and differentiable.
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
    """How many keys the query can see."""
    inverse_temperature: Float[Array, "*batch query heads"]
    """What the policy answered: the factor on the row's logits."""

    @classmethod
    def of(cls, state: SoftmaxState, inverse_temperature: Array) -> AttentionStats:
        """From the whole state of each row."""
        return cls(
            entropy=state.entropy,
            log_sum_exp=state.log_sum_exp,
            max_logit=state.max,
            min_logit=state.min,
            count=state.count,
            inverse_temperature=inverse_temperature,
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
        """exp(entropy): over how many equal keys the row would be as spread; 0 without keys."""
        return jnp.where(self.count > 0, jnp.exp(self.entropy), 0.0)


class AttentionOutput(NamedTuple):
    """What `attention` returns."""

    output: Float[Array, "*batch query heads value_dim"]
    stats: AttentionStats
