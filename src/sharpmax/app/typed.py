"""What a user types is text until it is known to be what was asked for; if not, one sentence says
why.
"""

from __future__ import annotations

import math
import re

import numpy as np

from sharpmax._errors import UserError

MOST_ITEMS = 16_384
"""As many as the largest sets of the paper."""

SHOWN = 20
"""Characters of a wrong word that an error repeats."""


def logits(text: str) -> np.ndarray:
    """Numbers, with commas, semicolons, spaces or new lines between them."""
    words = [word for word in re.split(r"[\s,;]+", text.strip("[]() \n\t")) if word]
    if not words:
        raise UserError("type at least one logit, such as 2.5, 0, -1")
    if len(words) > MOST_ITEMS:
        raise UserError(f"{len(words):,} logits are too many: type at most {MOST_ITEMS:,}")
    return np.array([_number(word, place) for place, word in enumerate(words, start=1)])


def _number(word: str, place: int) -> float:
    try:
        value = float(word)
    except ValueError as error:
        raise UserError(
            f"logit {place} is {_short(word)!r}: expected numbers such as 2.5, 0, -1, with commas "
            "or spaces between them"
        ) from error
    if not math.isfinite(value):
        raise UserError(f"logit {place} is {_short(word)!r}: expected a finite number")
    return value


def whole_numbers(what: str, text: str) -> list[int] | None:
    """Whole numbers from a text such as `0, 4-7`; None for an empty one, which means all."""
    if not text.strip():
        return None
    found: list[int] = []
    for part in re.split(r"[\s,;]+", text.strip(" \t\n,;")):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part)
        if match is None:
            raise UserError(f"{what}: expected whole numbers such as 0, 4-7, got {_short(part)!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MOST_ITEMS:
            raise UserError(f"{what}: {part} is no range: the smaller number stands first")
        found += range(first, last + 1)
    return found


def curve(text: str | None) -> np.ndarray:
    """What was drawn: heights from 0 to 1, from left to right."""
    if not text:
        raise UserError("draw a curve first: press on the field above and move")
    return np.clip(logits(text), 0.0, 1.0)


def _short(word: str) -> str:
    return word if len(word) <= SHOWN else word[: SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"
