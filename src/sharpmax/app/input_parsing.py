"""Parse what users type or draw; errors are one sentence for the page."""

from __future__ import annotations

import math
import re

import numpy as np

from sharpmax._errors import UserError
from sharpmax._ranges import parse_ranges, shorten

MAX_ITEMS = 16_384
"""Size of the largest sets in the paper."""


def parse_logits(text: str) -> np.ndarray:
    """Return the numbers in a text, separated by commas, semicolons, spaces or new lines."""
    words = [word for word in re.split(r"[\s,;]+", text.strip("[]() \n\t")) if word]
    if not words:
        raise UserError("type at least one logit, such as 2.5, 0, -1")
    if len(words) > MAX_ITEMS:
        raise UserError(f"{len(words):,} logits are too many: type at most {MAX_ITEMS:,}")
    return np.array([_parse_logit(word, number) for number, word in enumerate(words, start=1)])


def _parse_logit(word: str, number: int) -> float:
    try:
        value = float(word)
    except ValueError as error:
        raise UserError(
            f"logit {number} is {shorten(word)!r}: expected numbers such as 2.5, 0, -1, separated "
            "by commas or spaces"
        ) from error
    if not math.isfinite(value):
        raise UserError(f"logit {number} is {shorten(word)!r}: expected a finite number")
    return value


def parse_curve(text: str | None) -> np.ndarray:
    """Return the heights of a drawn curve, clipped to 0 to 1, from left to right."""
    if not text:
        raise UserError("draw a curve first: press on the field above and move")
    return np.clip(parse_logits(text), 0.0, 1.0)


def parse_selection(name: str, text: str) -> list[int] | None:
    """Return the whole numbers in a text such as `0, 4-7`; None for an empty text, meaning all."""
    return parse_ranges(name, text) if text.strip() else None
