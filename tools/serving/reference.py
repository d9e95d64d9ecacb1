"""What an engine is compared with: log-probabilities by transformers with `shf.sharpen`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sharpmax.hf.evaluate.tasks import TASKS, TaskPrompt
from sharpmax.hf.export.factors import Sharpening, fixed_rules
from sharpmax.hf.patch.context import patched_attention

EPSILON = float(torch.finfo(torch.float32).eps)

ROUNDING = 64
"""How many units of the largest logit two engines may differ by: what `sharpmax export` allows
between folded weights and `sharpen`. Each of 30 layers rounds its sums in another order."""


def lookup_prompts(tokenizer: Any, names: Sequence[int], questions: int = 1) -> list[TaskPrompt]:
    """Return a lookup prompt for each number of names."""
    return [
        TASKS["lookup"].make_prompt(tokenizer, count, questions, np.random.default_rng([7, place]))
        for place, count in enumerate(names)
    ]


def whole(prompt: TaskPrompt) -> list[int]:
    """Return the tokens of a prompt with its first question."""
    return [*prompt.context, *prompt.questions[0]]


@torch.no_grad()
def log_probabilities(model: Any, tokens: Sequence[int], start: int = 0) -> torch.Tensor:
    """Return the log-probabilities of all tokens after each token from `start` on."""
    logits = model(input_ids=torch.tensor([list(tokens)])).logits[0, start:]
    return logits.double().log_softmax(-1)


def of_tokens(model: Any, tokens: Sequence[int], first: int = 1) -> np.ndarray:
    """Return the log-probability of each token of a text from the one at `first` on."""
    rows = log_probabilities(model, tokens, first - 1)[:-1]
    return rows.gather(1, torch.tensor(tokens[first:])[:, None])[:, 0].numpy()


@torch.no_grad()
def tolerance(model: Any, tokens: Sequence[int]) -> float:
    """Return how much two float32 engines may differ in a log-probability.

    A log-probability is a difference of logits, of which each may be off by `ROUNDING` units.
    """
    largest = float(model(input_ids=torch.tensor([list(tokens)])).logits.abs().max())
    return ROUNDING * EPSILON * largest


@contextmanager
def constant_factors(model: Any, calibration: Any, length: int) -> Iterator[None]:
    """Sharpen every row as a calibration asks for at one length: what an export holds."""
    sharpening = Sharpening.create(model, calibration)
    rules = fixed_rules(sharpening.layers, sharpening.at_length(length))
    with patched_attention(model, sharpening.layers, rules):
        yield


def largest(differences: Sequence[np.ndarray]) -> float:
    return float(max(np.abs(part).max() for part in differences))
