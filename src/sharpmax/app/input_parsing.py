"""Parse what users type or draw; errors are one sentence for the page.

Events bring the values as the browser sent them, of any type: whoever can reach the server can send
what no control of the page would. So each value is checked here before it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import TypeVar

import numpy as np

from sharpmax._errors import UserError
from sharpmax._ranges import parse_ranges, shorten

Choice = TypeVar("Choice")

MAX_ITEMS = 16_384
"""Size of the largest sets in the paper."""
MAX_LOGIT = 1e6
"""Largest size of a typed logit: differences over a temperature are far from overflow."""
MAX_TEXT = 200_000
"""Characters of the longest text: some 16,384 tokens of prose are 70,000."""
MAX_LINE = 2_000
"""Characters in a box of one line."""
MAX_SELECTED = 1_000
"""Numbers in a selection of layers or heads."""


def check_text(name: str, value: object, most: int = MAX_TEXT) -> str:
    """Return a text that is not too long. The page sends None for a box that was never used."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{name} is {_show(value)}: expected a text")
    if len(value) > most:
        raise UserError(f"{name} has {len(value):,} characters: shorten it to {most:,}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{name} has half of a surrogate pair in it: expected Unicode text")
    return value


def check_number(name: str, value: object, low: float, high: float) -> float:
    """Return a number that lies between two bounds, both included."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # type: ignore[operator]
        raise UserError(f"{name} is {_show(value)}: expected a number from {low:g} to {high:,g}")
    return float(value)  # type: ignore[arg-type]


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number that lies between two bounds, both included."""
    number = check_number(name, value, low, high)
    if not number.is_integer():
        raise UserError(f"{name} is {_show(value)}: expected a whole number")
    return int(number)


def check_size(name: str, value: object, sizes: Collection[int]) -> int:
    """Return the size that a text such as `1024` names; sizes come as text from our own slider."""
    return int(check_choice(name, value, [str(size) for size in sizes]))


def check_choice(name: str, value: object, choices: Collection[Choice]) -> Choice:
    """Return the one of the choices that is equal to a value."""
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    raise UserError(f"{name} is {_show(value)}: expected {', '.join(map(str, choices))}")


def check_choices(name: str, value: object, choices: Collection[str]) -> list[str]:
    """Return the choices that are in a list, in their own order."""
    if not isinstance(value, list):
        raise UserError(f"{name} is {_show(value)}: expected a list")
    chosen = {check_choice(name, item, choices) for item in value}
    return [choice for choice in choices if choice in chosen]


def _show(value: object) -> str:
    return shorten(str(value) if isinstance(value, (int, float)) else repr(value))


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
    if abs(value) > MAX_LOGIT:
        raise UserError(
            f"logit {number} is {shorten(word)!r}: expected a number from {-MAX_LOGIT:,.0f} to "
            f"{MAX_LOGIT:,.0f}"
        )
    return value


def parse_curve(text: str) -> np.ndarray:
    """Return the heights of a drawn curve, clipped to 0 to 1, from left to right."""
    if not text:
        raise UserError("draw a curve first: press on the field above and move")
    return np.clip(parse_logits(text), 0.0, 1.0)


def parse_selection(
    name: str, value: object, most: int = MAX_SELECTED, largest: int | None = None
) -> list[int] | None:
    """Return the whole numbers in a text such as `0, 4-7`; None for an empty text, meaning all.

    Args:
        name: What the numbers are, for error messages.
        value: The text.
        most: How many numbers there may be.
        largest: The largest number that is allowed; None for any.
    """
    text = check_text(name, value, MAX_LINE)
    if not text.strip():
        return None
    numbers: list[int] = []
    for part in re.split(r"[\s,;]+", text.strip(" \t\r\n,;")):
        numbers += parse_ranges(name, part)
        if len(numbers) > most:
            raise UserError(f"{name}: {shorten(text)!r} are more than {most:,} numbers: give fewer")
    if largest is not None and max(numbers) > largest:
        raise UserError(f"{name}: {max(numbers):,} is too large: give numbers up to {largest:,}")
    return numbers
