"""Adaptive temperature on output logits: sharpen the distribution of the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import LogitsProcessor

from sharpmax.ops._rows import prepare
from sharpmax.ops.inverse_temperature import solver
from sharpmax.ops.state import state_of
from sharpmax.policies import PAPER, Policy, inverse_temperatures

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class AdaptiveTemperatureLogitsProcessor(LogitsProcessor):
    """Sharpen the next token's distribution by what a policy returns for its entropy.

        scores -> b * scores,   b = policy(entropy of softmax(scores), number of possible tokens)

    Tokens at -inf, which another processor has excluded, count nowhere and stay excluded. The paper
    fitted its polynomial to attention heads, not to vocabularies, so there is no theory behind this
    use. Greedy decoding does not change under any policy above 0.

    Args:
        policy: A function of (entropy, count) that returns the inverse temperature.

    Raises:
        TypeError: `policy` is not callable.

    Examples:
        >>> processor = AdaptiveTemperatureLogitsProcessor()
        >>> model.generate(**inputs, do_sample=True, logits_processor=[processor])
    """

    def __init__(self, policy: Policy = PAPER) -> None:
        if not callable(policy):
            raise TypeError(f"policy must be a function of (entropy, count), got {policy!r}")
        self.policy = policy

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch length"],
        scores: Float[torch.Tensor, "batch vocabulary"],
    ) -> Float[torch.Tensor, "batch vocabulary"]:
        """Return the sharpened scores.

        Args:
            input_ids: The tokens so far, which are not used.
            scores: The logits of the next token.

        Returns:
            The logits times the inverse temperature, in the same type.
        """
        possible = scores > -torch.inf
        rows = prepare(scores.float(), possible, -1)
        state = state_of(rows)
        known = state.entropy, state.count, state.varentropy
        factor = inverse_temperatures(self.policy, *known, solver(rows))
        # A factor of 0 would turn -inf into NaN.
        sharpened = torch.where(possible, scores.float() * factor[:, None], -torch.inf)
        return sharpened.to(scores.dtype)

    def __repr__(self) -> str:
        return f"AdaptiveTemperatureLogitsProcessor({self.policy!r})"
