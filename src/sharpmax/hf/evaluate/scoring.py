"""What a model answers to the questions of a case, in two forward passes and without generating."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.evaluate.tasks import Case

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Answers:
    """By question."""

    right: Bool[np.ndarray, " questions"]
    """Greedy decoding writes the answer, and no digit after it."""
    log_probability: Float[np.ndarray, " questions"]
    """Of the right answer, in nats."""


def require_language_model(model: PreTrainedModel) -> None:
    """Only a decoder with its output layer gives probabilities of the next token."""
    causal = "ForCausalLM" in type(model).__name__ or "LMHeadModel" in type(model).__name__
    if not causal:
        raise UserError(
            f"{type(model).__name__} does not predict the next token: give a causal language model "
            "(...ForCausalLM)"
        )


def answers(model: PreTrainedModel, tokenizer: Any, case: Case) -> Answers:
    """The model reads the text once, and then each question, with its right answer behind it.

    Greedy decoding writes an answer exactly if each of its tokens is the likeliest one after those
    before it, so one pass over the right answer tells what generating would.
    """
    with torch.no_grad():
        logits = ask(model, case, read(model, case))
    right, total = [], []
    for row, answer in zip(logits, case.answers, strict=True):
        scores = row.double().log_softmax(-1)
        *best, after = scores.argmax(-1).tolist()
        # Decoded, since many tokenizers mark a leading space in a way of their own.
        goes_on = tokenizer.decode([after])[:1].isdigit()
        right.append(tuple(best) == answer and not goes_on)
        total.append(float(log_probability(scores, answer)))
    return Answers(np.array(right), np.array(total))


def log_probability(
    scores: Float[Tensor, "answer_plus_one vocabulary"], answer: tuple[int, ...]
) -> Float[Tensor, ""]:
    """Of an answer, from the log-probabilities of the tokens at each of its places."""
    tokens = torch.tensor(answer, device=scores.device)
    return scores[: len(answer)].gather(1, tokens[:, None]).sum()


def read(model: PreTrainedModel, case: Case) -> Any:
    """What the model keeps of the text, once for each question."""
    if not case.context:
        return None
    cache: Any = DynamicCache(config=model.config)
    context = torch.tensor([case.context], device=model.device)
    model(input_ids=context, past_key_values=cache, use_cache=True, **_only_last(model, 1))
    cache.batch_repeat_interleave(len(case.questions))
    return cache


def ask(
    model: PreTrainedModel, case: Case, cache: Any
) -> list[Float[Tensor, "answer_plus_one vocabulary"]]:
    """By question: the logits that predict each token of the answer, and the one after it."""
    rows = [[*ask, *answer] for ask, answer in zip(case.questions, case.answers, strict=True)]
    longest = max(map(len, rows))
    # Filled up at the end, where a causal model's other positions do not see it.
    filled = [row + [row[-1]] * (longest - len(row)) for row in rows]
    kept = longest - min(map(len, case.questions)) + 1
    output = model(
        input_ids=torch.tensor(filled, device=model.device),
        past_key_values=cache,
        use_cache=cache is not None,
        **_only_last(model, kept),
    )
    logits = output.logits[:, -kept:]
    begins = [begin - (longest - kept) for begin, _ in answer_rows(case)]
    return [
        logits[place, begin : begin + len(answer) + 1]
        for place, (begin, answer) in enumerate(zip(begins, case.answers, strict=True))
    ]


def answer_rows(case: Case) -> list[tuple[int, int]]:
    """By question: from which position behind the context to which, without it, the answer's tokens
    are predicted.
    """
    pairs = zip(case.questions, case.answers, strict=True)
    return [(len(ask) - 1, len(ask) - 1 + len(answer)) for ask, answer in pairs]


def _only_last(model: PreTrainedModel, count: int) -> dict[str, Any]:
    """A vocabulary of logits for each token of a long text would take gigabytes."""
    takes = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": count} if takes else {}
