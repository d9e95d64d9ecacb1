"""Measure each head where a model answers: its entropy, and what sharpening it would change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax.hf.evaluate.scoring import (
    answer_log_probability,
    answer_logits,
    answer_positions,
    read_context,
)
from sharpmax.hf.evaluate.tasks import TaskPrompt
from sharpmax.hf.patch.context import observed_layers, patched_attention
from sharpmax.hf.patch.layers import Layer, attention_layers
from sharpmax.hf.patch.parallel import gather_heads, share_of, sum_over_shares
from sharpmax.hf.patch.scope import PLAIN, Observer
from sharpmax.hf.patch.wrappers import input_device
from sharpmax.hf.scan.forward import LOGIT_ARGUMENTS
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibration import architecture_of
from sharpmax.torch import attention_stats, scaled_dot_product_attention

if TYPE_CHECKING:
    from jaxtyping import Float


def measure_entropies(
    model: PreTrainedModel, prompt: TaskPrompt, factors: Sequence[float]
) -> Float[np.ndarray, "factors layers heads"]:
    """Return each head's mean entropy over the positions that predict the answers.

    `factors` are inverse temperatures of the measured head; the layers below it stay plain. NaN
    where a layer has fewer heads than the largest.
    """
    layers, architecture = attention_layers(model), architecture_of(model)
    entropies = np.full((len(factors), architecture.layers, max(architecture.heads)), np.nan)
    positions = answer_positions(prompt)

    def make_observer(layer: Layer) -> Observer:
        def observe(arguments: dict[str, Any]) -> Tensor:
            for index, factor in enumerate(factors):
                entropy = _sharpened_entropy(arguments, factor)
                rows = [
                    entropy[question, :, start:stop]
                    for question, (start, stop) in enumerate(positions)
                ]
                mean = torch.cat(rows, 1).double().mean(1).cpu().numpy()
                mean = gather_heads(mean, share_of(layer))
                entropies[index, layer.index, : len(mean)] = mean
            return scaled_dot_product_attention(**arguments)

        return observe

    with torch.no_grad(), patched_attention(model, layers):
        cache = read_context(model, prompt)
        with observed_layers(layers, make_observer):
            answer_logits(model, prompt, cache)
    return entropies


def _sharpened_entropy(
    arguments: dict[str, Any], factor: float
) -> Float[Tensor, "questions heads query"]:
    """Return the entropy of softmax(factor * logits), in nats, from a layer's arguments."""
    options = {name: arguments[name] for name in LOGIT_ARGUMENTS if name in arguments}
    mask = options.get("attn_mask")
    if factor != 1 and mask is not None and mask.dtype != torch.bool:
        raise NotImplementedError(
            "the entropy of sharpened heads is not implemented for attention with a bias on its "
            "logits: choose heads by answers"
        )
    size = arguments["query"].shape[-1]
    options["scale"] = factor * (options.get("scale") or size**-0.5)
    if options.get("softcap") is not None:
        options["softcap"] *= factor  # factor * cap * tanh(x / cap): sharpened after the softcap
    return attention_stats(arguments["query"], policy=PLAIN, **options).entropy


def measure_benefits(
    model: PreTrainedModel, prompt: TaskPrompt
) -> Float[np.ndarray, "layers heads"]:
    """Return the derivative of log p(right answer) by each head's log inverse temperature.

    It is taken at inverse temperature 1, averaged over the questions, by one backward pass for all
    heads. NaN where a layer has fewer heads than the largest.
    """
    architecture = architecture_of(model)
    device = input_device(model)
    log_factors = [
        torch.zeros(heads, device=device, requires_grad=True) for heads in architecture.heads
    ]
    with torch.enable_grad(), frozen_weights(model), ExitStack() as stack:
        for number, log_factor in enumerate(log_factors):
            stack.enter_context(sharpen(model, _HeadTemperatures(log_factor), layers=[number]))
        logits = answer_logits(model, prompt, read_context(model, prompt))
        scores = [
            answer_log_probability(rows.float().log_softmax(-1), answer)
            for rows, answer in zip(logits, prompt.answers, strict=True)
        ]
        slopes = torch.autograd.grad(torch.stack(scores).mean(), log_factors)
        sum_over_shares(slopes, attention_layers(model))
    benefits = np.full((architecture.layers, max(architecture.heads)), np.nan)
    for number, slope in enumerate(slopes):
        benefits[number, : len(slope)] = slope.double().cpu().numpy()
    return benefits


class _HeadTemperatures:
    """A policy of one inverse temperature per head, exp(log_factor), which has gradients."""

    needs_entropy = False
    by_head = True

    def __init__(self, log_factor: Float[Tensor, " heads"]) -> None:
        self.log_factor = log_factor

    def __call__(self, entropy: Any, count: Any, /) -> Tensor:
        factor = self.log_factor.exp().view(entropy.shape[1], entropy.shape[2], 1)
        return factor.to(entropy) * torch.ones_like(entropy)


@contextmanager
def frozen_weights(model: PreTrainedModel) -> Iterator[None]:
    """Switch off gradients of the weights, which would take most of the time and memory."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.requires_grad_(False)
        yield
    finally:
        for parameter, requires_grad in before:
            parameter.requires_grad_(requires_grad)
