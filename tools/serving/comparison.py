"""Compare the answers of an engine with transformers, and stop where they differ."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import reference

NAMES = (64, 4, 40, 24, 8)
"""Of the prompts whose log-probabilities are compared: about 60 to 820 tokens."""

NEW = 8
"""Tokens that are generated after each prompt."""

Part = dict[str, Any]
"""What one part of the result holds, as JSON values."""


class Failed(SystemExit):
    """A comparison that does not hold; nothing of its part is saved."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise Failed(f"serving: {message}")


def texts_of(prompts: list[list[int]], answers: list[Part]) -> list[list[int]]:
    return [[*prompt, *row["tokens"]] for prompt, row in zip(prompts, answers, strict=True)]


def compare_vllm(
    model: Any,
    prompts: list[list[int]],
    answers: list[Part],
    sharpened: Callable[[Any], AbstractContextManager[Any]],
) -> Part:
    """Compare an engine's log-probabilities with those of transformers inside `sharpened(model)`.

    `rounding` is the error of transformers in float32. `effect` says how far the engine is from
    the plain model, so that equality means something.
    """
    exact = reference.in_float64(model)
    differences, errors, effects = [], [], []
    for text, row in zip(texts_of(prompts, answers), answers, strict=True):
        found = np.array([*row.get("prompt_logprobs", []), *row["logprobs"]])
        first = len(text) - len(found)
        with sharpened(model):
            expected = reference.of_tokens(model, text, first)
        with sharpened(exact):
            errors.append(expected - reference.of_tokens(exact, text, first))
        differences.append(found - expected)
        effects.append(found - reference.of_tokens(model, text, first))
    rounding = reference.largest(errors)
    return {
        "tokens": [len(prompt) for prompt in prompts],
        "compared": sum(map(len, differences)),
        "largest_difference": reference.largest(differences),
        "rounding": rounding,
        "tolerance": reference.ERRORS * rounding,
        "effect": reference.largest(effects),
    }


def require_equal(name: str, part: Part) -> None:
    print(f"{name}: {part}", flush=True)
    difference, tolerance = part["largest_difference"], part["tolerance"]
    require(
        difference <= tolerance < part["effect"] / 100,
        f"{name} is off by {difference:.3g}; at most {tolerance:.3g} is rounding, and the "
        f"calibration changes {part['effect']:.3g}",
    )
