"""What else could be learned from the same prompts: other laws, and low-rank weights (LoRA)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.tune.learnable import HeadRates
from sharpmax.hf.tune.settings import LAW

if TYPE_CHECKING:
    from jaxtyping import Float

ALPHA = 2
"""Low-rank weights are multiplied by this: `lora_alpha` is twice the rank, a common choice."""
PROJECTION = "q_proj"


@dataclass(frozen=True)
class ByLaw:
    """Sharpen or soften each head of a layer by another law than that of calibrations.

        power:   b = clamp((count / from_tokens) ** rate, low, high)
        offset:  b = clamp(1 + offset + rate * log(count / from_tokens), low, high)

    for count > from_tokens, else 1.

    Attributes:
        rates: The rate of each head.
        offsets: The offset of each head; None for the power law.
        from_tokens: The number of tokens up to which nothing changes.
    """

    rates: Float[Tensor, " heads"]
    offsets: Float[Tensor, " heads"] | None
    from_tokens: int
    needs_entropy: ClassVar[bool] = False
    by_head: ClassVar[bool] = True
    learned: ClassVar[bool] = True

    @property
    def plain_up_to(self) -> int:
        return self.from_tokens

    def __call__(self, entropy: Any, count: Any, /) -> Float[Tensor, "batch kv_heads group query"]:
        _, kv_heads, group, _ = entropy.shape
        excess = torch.log(count.to(entropy.dtype).clamp(min=1) / self.from_tokens).clamp(min=0)
        growth = self.rates.to(entropy.dtype).view(kv_heads, group, 1) * excess
        if self.offsets is None:
            factor = growth.exp()
        else:
            offsets = self.offsets.to(entropy.dtype).view(kv_heads, group, 1)
            factor = 1 + growth + offsets * (excess > 0)
        return factor.clamp(LAW.low, LAW.high)


class LawRates(HeadRates):
    """Rates, and offsets if the law has them, of all heads.

    Args:
        model: The model.
        from_tokens: The number of tokens up to which nothing changes.
        name: `power` or `offset`.
    """

    def __init__(self, model: PreTrainedModel, from_tokens: int, name: str) -> None:
        super().__init__(model, from_tokens, LAW)
        self.name = name
        if name == "offset":
            rates = self.parameters
            self.parameters = [*rates, *(torch.zeros_like(each).requires_grad_() for each in rates)]

    def describe(self) -> dict[str, Any]:
        return {"law": self.name}

    def policy(self, layer: int) -> ByLaw:
        offsets = (
            self.parameters[len(self.parameters) // 2 + layer] if self.name == "offset" else None
        )
        return ByLaw(self.parameters[layer], offsets, self.changed_from)


class Lora:
    """Low-rank weights added to a model's query projections, by the package peft.

    They act at every length. Ordinary text therefore guards all positions, not only those after
    `from_tokens`.
    """

    changed_from = 1  # a row that sees one token has weight 1, whatever its query is

    def __init__(self, model: PreTrainedModel, adapted: Any, rank: int) -> None:
        self.adapted, self.rank = adapted, rank
        self.parameters: list[Tensor] = [
            parameter for name, parameter in model.named_parameters() if "lora_" in name
        ]

    def describe(self) -> dict[str, Any]:
        return {"lora_rank": self.rank, "lora_alpha": ALPHA * self.rank, "projection": PROJECTION}

    @contextmanager
    def applied(self) -> Iterator[None]:
        for parameter in self.parameters:  # tuning has frozen all that the model holds
            parameter.requires_grad_(True)
        yield

    def plain(self) -> AbstractContextManager[Any]:
        return self.adapted.disable_adapter()


@contextmanager
def attached_lora(model: PreTrainedModel, rank: int, seed: int) -> Iterator[Lora]:
    """Add low-rank weights to a model inside a `with` block.

    Raises:
        UserError: The model has no query projections of that name.
    """
    from peft import LoraConfig, get_peft_model  # other conditions do not need it

    if not any(name.endswith(f".{PROJECTION}") for name, _ in model.named_modules()):
        raise UserError(f"{type(model).__name__} has no {PROJECTION}: leave LoRA out of --only")
    frozen = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    settings = LoraConfig(r=rank, lora_alpha=ALPHA * rank, target_modules=[PROJECTION])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted: Any = get_peft_model(model, settings)
    try:
        yield Lora(model, adapted.eval(), rank)
    finally:
        adapted.unload()
        for parameter, requires_grad in frozen:
            parameter.requires_grad_(requires_grad)
