"""Adaptive temperature on output logits: the next token's distribution sharpened by what its own
entropy asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import LogitsProcessor

from sharpmax.ops import SoftmaxState
from sharpmax.policies import PAPER, Policy, inverse_temperatures

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class AdaptiveTemperatureLogitsProcessor(LogitsProcessor):
    """For `model.generate(do_sample=True, logits_processor=[...])`:

        scores -> b * scores,   b = policy(entropy of softmax(scores), number of tokens possible)

    Tokens that another processor has ruled out, at -inf, count nowhere and stay out. The paper
    fitted its polynomial to attention heads, not to vocabularies: what it does here is what people
    use, and has no theory behind it. Greedy decoding is unchanged by any policy above 0.
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
        possible = scores > -torch.inf
        state = SoftmaxState.of(scores.float(), possible)
        factor = inverse_temperatures(self.policy, state.entropy, state.count)
        # A factor of 0 would make a ruled out token NaN.
        sharpened = torch.where(possible, scores.float() * factor[:, None], -torch.inf)
        return sharpened.to(scores.dtype)

    def __repr__(self) -> str:
        return f"AdaptiveTemperatureLogitsProcessor({self.policy!r})"
