"""Score a model's answers to the questions of a prompt.

Where an answer must be written token by token as expected, two forward passes tell so without
generating. A prompt with a `Marking` lets the model write, and marks the text.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.evaluate.marking import Marking
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
        right: Whether greedy decoding writes the answer, and no digit after it; or the marks of
            what it writes, for a prompt with a `Marking`.
        log_probability: The log-probability of the right answer, in nats.
    """

    right: Bool[np.ndarray, " parts"]
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

    If the prompt has a `Marking`, the model writes an answer, and what it writes is marked.
    """
    if prompt.marking is None:
        return score_reference(model, tokenizer, prompt)
    with torch.no_grad():
        cache = read_context(model, prompt)
        kept = copy.deepcopy(cache)  # one to write with, one for the reference answer
        scores = score_logits(tokenizer, prompt, answer_logits(model, prompt, cache))
    written = write_answer(model, tokenizer, prompt.questions[0], prompt.marking, kept)
    return replace(scores, right=np.array(prompt.marking.mark(written)))


@torch.no_grad()
def score_reference(model: PreTrainedModel, tokenizer: Any, prompt: TaskPrompt) -> Scores:
    """Score how probable the right answers are, and whether greedy decoding writes them.

    The model reads the context once, then each question followed by its right answer. Greedy
    decoding writes an answer exactly if each of its tokens is the most probable one after those
    before it, so that one pass over the right answer replaces generating.
    """
    return score_logits(
        tokenizer, prompt, answer_logits(model, prompt, read_context(model, prompt))
    )


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


@torch.no_grad()
def write_answer(
    model: PreTrainedModel,
    tokenizer: Any,
    question: tuple[int, ...],
    marking: Marking,
    cache: Any = None,
) -> str:
    """Return what greedy decoding writes after a question.

    Writing ends at an end-of-sequence token, after `marking.max_tokens`, or as soon as nothing that
    could follow changes the marks. Penalties and sampling of the model's generation config are not
    applied.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        question: The last tokens of the prompt, at least one.
        marking: What ends the answer.
        cache: The key-value cache of the tokens before them, which grows; None if there are none.
    """
    cache = DynamicCache(config=model.config) if cache is None else cache
    ends = _end_tokens(model, tokenizer)
    written: list[int] = []
    text, following = "", list(question)
    while len(written) < marking.max_tokens and not marking.is_settled(text):
        tokens = torch.tensor([following], device=input_device(model))
        output = model(
            input_ids=tokens, past_key_values=cache, use_cache=True, **keep_logits(model, 1)
        )
        token = int(output.logits[0, -1].argmax())
        if token in ends:
            break
        written.append(token)
        following = [token]
        # All again: the text of a token can depend on those before it.
        text = tokenizer.decode(written, skip_special_tokens=True)
    return text


def _end_tokens(model: PreTrainedModel, tokenizer: Any) -> set[int]:
    """Return the tokens that end a text, by the model's configs and its tokenizer."""
    ends: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        token = getattr(source, "eos_token_id", None)
        if token is not None:
            ends |= {token} if isinstance(token, int) else set(token)
    return ends


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
