"""Measure, per head, how much attention the answer gets where a model begins to write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax.hf.evaluate.scoring import (
    Scores,
    answer_logits,
    answer_positions,
    read_context,
    score_answers,
    score_logits,
)
from sharpmax.hf.evaluate.tasks import TaskPrompt
from sharpmax.hf.patch.context import observed_layers, patched_attention
from sharpmax.hf.patch.layers import Layer, attention_layers
from sharpmax.hf.patch.parallel import gather_heads, share_of
from sharpmax.hf.patch.scope import Observer
from sharpmax.hf.tune.calibration import architecture_of
from sharpmax.ops import SoftmaxState
from sharpmax.ops._rows import prepare
from sharpmax.ops.inverse_temperature import solver
from sharpmax.policies import inverse_temperatures
from sharpmax.theory.growth import GAPS, count_competitors
from sharpmax.torch import scaled_dot_product_attention
from sharpmax.torch.interface import prepare_inputs
from sharpmax.torch.reference import compute_logits, compute_weights, visible_keys

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

WINNERS = (
    "needle",
    "rest of the answer",
    "another number",
    "first token",
    "last tokens",
    "elsewhere",
    "hidden",
)
"""What a head can rank first, by the kind of the token; the first kind that fits counts.

- needle: the token to copy, which is the first of the answer's number;
- rest of the answer: a later token of the same number;
- another number: a token of any other number of the text;
- first token: the first of the sequence, which many heads use as a sink;
- last tokens: one of the `LAST_TOKENS` before the answer, where the question is;
- elsewhere: any other token;
- hidden: the needle is outside the layer's window, so that the head cannot find it.
"""
NEEDLE, REST, NUMBER, FIRST, LAST, ELSEWHERE, HIDDEN = range(len(WINNERS))

LAST_TOKENS = 32
"""The questions of the built-in tasks have 10 to 40 tokens."""


@dataclass(frozen=True)
class NeedleRows:
    """Attention on the needle from the position that predicts its first token.

    Where a layer has fewer heads than the largest, weights are NaN, ranks 0 and winners -1.

    Attributes:
        weight: The weight of the needle's first token, the one to copy.
        answer_weight: The weight of all tokens of the answer's number.
        rank: 1 + the number of visible tokens with a larger logit than the needle's first token; 0
            where a window hides it.
        winner: What has the largest logit, as an index of `WINNERS`.
        competitors: The number of tokens within each of `sharpmax.theory.growth.GAPS` of the
            needle's logit, and the needle, before sharpening; without the first token and the rest
            of the answer. 0 where the needle is not ranked first.
        scores: Whether the model's answers are right.
    """

    weight: Float[np.ndarray, "questions layers heads"]
    answer_weight: Float[np.ndarray, "questions layers heads"]
    rank: Int[np.ndarray, "questions layers heads"]
    winner: Int[np.ndarray, "questions layers heads"]
    competitors: Int[np.ndarray, "questions layers heads gaps"]
    scores: Scores


def measure_needle_rows(model: PreTrainedModel, tokenizer: Any, prompt: TaskPrompt) -> NeedleRows:
    """Observe all heads while the model reads a prompt's questions with their answers.

    Only one row of logits per question and head is computed beside the model's own attention.
    """
    layers, architecture = attention_layers(model), architecture_of(model)
    shape = (len(prompt.questions), architecture.layers, max(architecture.heads))
    weight, answer_weight = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    rank, winner = np.zeros(shape, np.int32), np.full(shape, -1, np.int8)
    competitors = np.zeros((*shape, len(GAPS)), np.int32)
    arrays: tuple[np.ndarray, ...] = (weight, answer_weight, rank, winner, competitors)
    rows, kinds = needle_positions(prompt), token_kinds(prompt)

    def make_observer(layer: Layer) -> Observer:
        def observe(arguments: dict[str, Any]) -> Tensor:
            measured = measure_rows(arguments, rows, torch.from_numpy(kinds))
            for array, values in zip(arrays, measured, strict=True):
                whole = gather_heads(values.cpu().numpy(), share_of(layer), axis=1)
                array[:, layer.index, : whole.shape[1]] = whole
            return scaled_dot_product_attention(**arguments)

        return observe

    with torch.no_grad(), patched_attention(model, layers):
        cache = read_context(model, prompt)
        with observed_layers(layers, make_observer):
            logits = answer_logits(model, prompt, cache)
    if prompt.marking is None:
        scores = score_logits(tokenizer, prompt, logits)
    else:
        scores = score_answers(model, tokenizer, prompt)
    return NeedleRows(weight, answer_weight, rank, winner, competitors, scores)


def needle_positions(prompt: TaskPrompt) -> list[int]:
    """Return, per question, the position that predicts the first token of the answer's number.

    Positions are counted from the end of the context. An answer may begin with a space that is a
    token of its own, which is not part of the needle.
    """
    return [
        stop - min(last - first, stop - start)
        for (start, stop), (first, last) in zip(
            answer_positions(prompt), prompt.needles, strict=True
        )
    ]


def token_kinds(prompt: TaskPrompt) -> Int[np.ndarray, "questions tokens"]:
    """Return what each token is to each question, as an index of `WINNERS`."""
    kinds = np.full((len(prompt.questions), prompt.tokens), ELSEWHERE, np.int8)
    copies = prompt.copies or ((),) * len(prompt.questions)
    positions = needle_positions(prompt)
    for row, position, needle, others in zip(kinds, positions, prompt.needles, copies, strict=True):
        # In reverse order, because later kinds overwrite earlier ones.
        row[max(0, len(prompt.context) + position + 1 - LAST_TOKENS) :] = LAST
        row[0] = FIRST
        for start, stop in prompt.numbers:
            row[start:stop] = NUMBER
        for start, stop in (needle, *others):
            row[start:stop] = REST
            row[start] = NEEDLE
    return kinds


def measure_rows(
    arguments: dict[str, Any],
    rows: list[int],
    kinds: Int[Tensor, "questions tokens"],
) -> tuple[
    Float[Tensor, "questions heads"],
    Float[Tensor, "questions heads"],
    Int[Tensor, "questions heads"],
    Int[Tensor, "questions heads"],
    Int[Tensor, "questions heads gaps"],
]:
    """Return weight, answer weight, rank, winner and competitors of one row per question.

    Args:
        arguments: The arguments of a layer's attention.
        rows: The query of each question.
        kinds: What each token of the sequence is. A layer with a window may hold only the last
            tokens as keys.
    """
    logits, where, weights = attention_rows(arguments, rows)
    kinds = kinds[:, -logits.shape[-1] :].to(logits.device)[:, None].expand(logits.shape)
    needle, answer = kinds == NEEDLE, kinds <= REST
    hidden = torch.tensor(-torch.inf, dtype=logits.dtype, device=logits.device)
    visible_logits = torch.where(where, logits, hidden)
    best = torch.where(needle & where, logits, hidden).amax(-1)
    found = (needle & where).any(-1)
    rank = torch.where(found, 1 + (visible_logits > best[..., None]).sum(-1), 0)
    winner = kinds.gather(-1, visible_logits.argmax(-1, keepdim=True))[..., 0]
    winner = torch.where(rank == 1, NEEDLE, torch.where(found, winner, HIDDEN))
    weight = torch.where(needle, weights, 0.0).sum(-1)
    answer_weight = torch.where(answer, weights, 0.0).sum(-1)
    competes = where & (kinds > REST) & (kinds != FIRST)
    competitors = 1 + count_competitors(logits, top=best, where=competes)
    competitors = torch.where((rank == 1)[..., None], competitors, 0)
    return weight, answer_weight, rank, winner, competitors


def attention_rows(
    arguments: dict[str, Any], rows: list[int]
) -> tuple[
    Float[Tensor, "questions heads keys"],
    Bool[Tensor, "questions heads keys"],
    Float[Tensor, "questions heads keys"],
]:
    """Return logits, visible keys and (sharpened) weights of one query per question.

    The logits are in float32 or better, and only these rows are computed.
    """
    query, key = arguments["query"], arguments["key"]
    questions = torch.arange(len(rows), device=query.device)
    at = torch.tensor(rows, device=query.device)
    mask = arguments.get("attn_mask")
    if mask is not None:
        sizes = (len(rows), mask.shape[1], query.shape[2], key.shape[2])
        mask = mask.expand(sizes)[questions, :, at][:, :, None]
    options = {name: arguments[name] for name in ("scale", "enable_gqa", "softcap", "sinks")}
    inputs = prepare_inputs(
        query[questions, :, at][:, :, None], key, None, attn_mask=mask, **options
    )
    distance = at[:, None] - torch.arange(key.shape[2], device=query.device)
    near = torch.ones_like(distance, dtype=torch.bool)
    if arguments.get("is_causal"):
        near &= distance >= 0
    if arguments.get("window") is not None:
        near &= distance.abs() < arguments["window"]
    near = near[:, None, None, None]
    inputs = inputs._replace(mask=near if inputs.mask is None else inputs.mask & near)
    with inputs.full_precision():
        logits, where = compute_logits(inputs), visible_keys(inputs)
        state = SoftmaxState.of(logits, where)
        known = state.entropy, state.count, state.varentropy
        solve = solver(prepare(logits, where, -1))
        factor = inverse_temperatures(arguments["policy"], *known, solve)
        weights = compute_weights(inputs, logits, where, factor)
    logits, where, weights = (part[..., 0, :].flatten(1, 2) for part in (logits, where, weights))
    return logits, where, weights
