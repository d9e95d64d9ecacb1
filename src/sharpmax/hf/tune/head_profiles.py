"""What each head does where a model answers a question, and what sharpening it would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax.hf.evaluate.scoring import answer_rows, ask, log_probability, read
from sharpmax.hf.evaluate.tasks import Case
from sharpmax.hf.patch.attention import PLAIN
from sharpmax.hf.patch.layers import (
    Layer,
    attention_layers,
    observed_layers,
    patched_attention,
)
from sharpmax.hf.scan.forward import LOGIT_ARGUMENTS
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibration import Architecture
from sharpmax.torch import attention_stats, scaled_dot_product_attention

if TYPE_CHECKING:
    from jaxtyping import Float


def entropies(
    model: PreTrainedModel, case: Case, factors: Sequence[float]
) -> Float[np.ndarray, "factors layers heads"]:
    """The entropy of each head at the positions that predict the answers, on average over them, for
    each inverse temperature in `factors` of that head; NaN where a layer has fewer heads.
    """
    layers, shape = attention_layers(model), Architecture.of(model)
    found = np.full((len(factors), shape.layers, max(shape.heads)), np.nan)
    rows = answer_rows(case)

    def observer(layer: Layer) -> Callable[[dict[str, Any]], Tensor]:
        def look(arguments: dict[str, Any]) -> Tensor:
            for place, factor in enumerate(factors):
                entropy = _entropy(arguments, factor)
                parts = [entropy[row, :, first:last] for row, (first, last) in enumerate(rows)]
                mean = torch.cat(parts, 1).double().mean(1)
                found[place, layer.index, : len(mean)] = mean.cpu().numpy()
            return scaled_dot_product_attention(**arguments)

        return look

    with torch.no_grad(), patched_attention(model, layers):
        cache = read(model, case)
        with observed_layers(layers, observer):
            ask(model, case, cache)
    return found


def _entropy(arguments: dict[str, Any], factor: float) -> Float[Tensor, "questions heads query"]:
    """Of softmax(factor * logits)."""
    some = {name: arguments[name] for name in LOGIT_ARGUMENTS if name in arguments}
    mask = some.get("attn_mask")
    if factor != 1 and mask is not None and mask.dtype != torch.bool:
        raise NotImplementedError(
            "the entropy of sharpened heads is not served for attention with a bias on its logits"
        )
    size = arguments["query"].shape[-1]
    some["scale"] = factor * (some.get("scale") or size**-0.5)
    if some.get("softcap") is not None:
        some["softcap"] *= factor  # factor * cap * tanh(x / cap), as sharpening has it
    return attention_stats(arguments["query"], policy=PLAIN, **some).entropy


def benefits(model: PreTrainedModel, case: Case) -> Float[np.ndarray, "layers heads"]:
    """By how much the log-probability of the right answers, on average over the questions, grows
    with the logarithm of each head's inverse temperature: its derivative where that is 1, for all
    heads by one backward pass; NaN where a layer has fewer heads.
    """
    shape = Architecture.of(model)
    logs = [torch.zeros(heads, device=model.device, requires_grad=True) for heads in shape.heads]
    with torch.enable_grad(), _frozen(model), ExitStack() as blocks:
        for number, log in enumerate(logs):
            blocks.enter_context(sharpen(model, _Tried(log), layers=[number]))
        rows = zip(ask(model, case, read(model, case)), case.answers, strict=True)
        scores = [log_probability(row.float().log_softmax(-1), answer) for row, answer in rows]
        slopes = torch.autograd.grad(torch.stack(scores).mean(), logs)
    found = np.full((shape.layers, max(shape.heads)), np.nan)
    for number, slope in enumerate(slopes):
        found[number, : len(slope)] = slope.double().cpu().numpy()
    return found


class _Tried:
    """A policy whose inverse temperatures, by head, autograd follows."""

    needs_entropy = False
    by_head = True

    def __init__(self, log: Float[Tensor, " heads"]) -> None:
        self.log = log

    def __call__(self, entropy: Any, count: Any, /) -> Tensor:
        factor = self.log.exp().view(entropy.shape[1], entropy.shape[2], 1)
        return factor.to(entropy.dtype) * torch.ones_like(entropy)


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """Without gradients of the weights, which would take the most time and memory."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.requires_grad_(False)
        yield
    finally:
        for parameter, wanted in before:
            parameter.requires_grad_(wanted)
