"""What an engine is compared with: log-probabilities by transformers with `shf.sharpen`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sharpmax.hf.evaluate.tasks import TASKS, TaskPrompt
from sharpmax.hf.export.factors import Sharpening, fixed_rules
from sharpmax.hf.patch.context import patched_attention

ERRORS = 4
"""How many times the rounding error of transformers two engines may differ by. Both round, each
in its own order, which makes 2; and twice that, since the largest of few errors is compared."""


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


@contextmanager
def constant_factors(model: Any, calibration: Any, length: int) -> Iterator[None]:
    """Sharpen every row as a calibration asks for at one length: what an export holds."""
    sharpening = Sharpening.create(model, calibration)
    rules = fixed_rules(sharpening.layers, sharpening.at_length(length))
    with patched_attention(model, sharpening.layers, rules):
        yield


def in_float64(model: Any) -> Any:
    """Return a copy of a model whose results count as exact.

    transformers computes norms and positions in float32 there too, so that errors which are
    measured against it are somewhat too small.
    """
    return copy.deepcopy(model).double()


def largest(differences: Sequence[np.ndarray]) -> float:
    return float(max(np.abs(part).max() for part in differences))
