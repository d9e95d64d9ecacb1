"""Score a model's answers to the questions of a prompt: two forward passes, no generation."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.evaluate.tasks import TaskPrompt
from sharpmax.hf.patch.wrappers import input_device

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


CHUNK = 8192
"""Number of tokens of a context that the model reads at a time. Shorter chunks take less memory and
more time: SDPA is fastest where queries and keys are the same tokens."""


@dataclass(frozen=True)
class Scores:
    """How well a model answered each question of a prompt.

    Attributes:
        right: Whether greedy decoding writes the answer, and no digit after it.
        log_probability: The log-probability of the right answer, in nats.
    """

    right: Bool[np.ndarray, " questions"]
    log_probability: Float[np.ndarray, " questions"]


def require_language_model(model: PreTrainedModel) -> None:
    """Raise unless the model is a decoder with an output layer, which predicts the next token."""
    name = type(model).__name__
    if "ForCausalLM" not in name and "LMHeadModel" not in name:
        raise UserError(
            f"{name} does not predict the next token: give a causal language model (...ForCausalLM)"
        )


def score_answers(model: PreTrainedModel, tokenizer: Any, prompt: TaskPrompt) -> Scores:
    """Score the model's answers to all questions of a prompt.

    The model reads the context once, then each question followed by its right answer. Greedy
    decoding writes an answer exactly if each of its tokens is the most probable one after those
    before it, so that one pass over the right answer replaces generating.
    """
    with torch.no_grad():
        logits = answer_logits(model, prompt, read_context(model, prompt))
    return score_logits(tokenizer, prompt, logits)


def score_logits(
    tokenizer: Any,
    prompt: TaskPrompt,
    logits: list[Float[Tensor, "answer_plus_one vocabulary"]],
) -> Scores:
    """Score answers by the logits of their tokens and of the token after them."""
    right, log_probability = [], []
    for rows, answer in zip(logits, prompt.answers, strict=True):
        log_probabilities = rows.double().log_softmax(-1)
        *best, after = log_probabilities.argmax(-1).tolist()
        # Decoded, because tokenizers mark a leading space in different ways.
        continues = tokenizer.decode([after])[:1].isdigit()
        right.append(tuple(best) == answer and not continues)
        log_probability.append(float(answer_log_probability(log_probabilities, answer)))
    return Scores(np.array(right), np.array(log_probability))


def answer_log_probability(
    log_probabilities: Float[Tensor, "answer_plus_one vocabulary"], answer: tuple[int, ...]
) -> Float[Tensor, ""]:
    """Sum the log-probabilities of an answer's tokens, given those of all tokens in each place."""
    tokens = torch.tensor(answer, device=log_probabilities.device)
    return log_probabilities[: len(answer)].gather(1, tokens[:, None]).sum()


def read_context(model: PreTrainedModel, prompt: TaskPrompt) -> Any:
    """Return the key-value cache of the context, repeated for each question; None if empty.

    A long context is read in chunks: beyond one chunk only the cache grows.
    """
    if not prompt.context:
        return None
    cache: Any = DynamicCache(config=model.config)
    context = torch.tensor([prompt.context], device=input_device(model))
    for chunk in context.split(CHUNK, dim=1):
        model(input_ids=chunk, past_key_values=cache, use_cache=True, **keep_logits(model, 1))
    cache.batch_repeat_interleave(len(prompt.questions))
    return cache


def answer_logits(
    model: PreTrainedModel, prompt: TaskPrompt, cache: Any
) -> list[Float[Tensor, "answer_plus_one vocabulary"]]:
    """Return, per question, the logits of each token of the answer and of the token after it."""
    sequences = [
        [*question, *answer]
        for question, answer in zip(prompt.questions, prompt.answers, strict=True)
    ]
    longest = max(map(len, sequences))
    # Padded at the end, where the other positions of a causal model do not see it.
    padded = [sequence + [sequence[-1]] * (longest - len(sequence)) for sequence in sequences]
    kept = longest - min(map(len, prompt.questions)) + 1
    output = model(
        input_ids=torch.tensor(padded, device=input_device(model)),
        past_key_values=cache,
        use_cache=cache is not None,
        **keep_logits(model, kept),
    )
    logits = output.logits[:, -kept:]
    skipped = longest - kept
    return [
        logits[row, start - skipped : stop - skipped + 1]
        for row, (start, stop) in enumerate(answer_positions(prompt))
    ]


def answer_positions(prompt: TaskPrompt) -> list[tuple[int, int]]:
    """Return, per question, the range of positions that predict the answer's tokens.

    Positions are counted from the end of the context; the end of a range is excluded.
    """
    pairs = zip(prompt.questions, prompt.answers, strict=True)
    return [(len(question) - 1, len(question) - 1 + len(answer)) for question, answer in pairs]


def keep_logits(
    model: PreTrainedModel, which: int | list[int] | Int[Tensor, " positions"]
) -> dict[str, Any]:
    """Ask for the last logits only, or for those of some positions.

    Those of all tokens of a long text would take gigabytes. Empty if the model has no such option.
    """
    supported = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": which} if supported else {}
