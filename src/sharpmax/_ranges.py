"""Parse lists of whole numbers and ranges, such as `0,4-7`, from what users type."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

from sharpmax._errors import UserError

MAX_RANGE = 100_000
"""Largest number of values in a list, so that a typing error cannot fill the memory."""

MAX_LENGTHS = 1_000
"""Largest number of lengths of prompts: all prompts are made before the model reads one."""

MAX_LENGTH = 10_000_000
"""Largest length of a prompt; the longest contexts of today have as many tokens."""

MAX_SHOWN = 20
"""Characters of the input that an error message repeats."""


def parse_ranges(name: str, text: str) -> list[int]:
    """Return the whole numbers in a text such as `0,4-7`, in the order given.

    Args:
        name: What the numbers are, such as `--layers`, for error messages.
        text: Numbers and ranges, separated by commas, semicolons or spaces.

    Raises:
        UserError: The text is empty, has something else in it, or has an invalid range.
    """
    numbers: list[int] = []
    for part in re.split(r"[\s,;]+", text.strip(" \t\n,;")):
        match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", part, re.ASCII)
        if match is None:
            raise UserError(f"{name}: expected whole numbers such as 0,4-7, got {shorten(part)!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UserError(f"{name}: invalid range {part!r}: the start is larger than the end")
        if last - first >= MAX_RANGE:
            raise UserError(f"{name}: the range {part!r} has more than {MAX_RANGE:,} numbers")
        if last - first >= MAX_RANGE - len(numbers):
            raise UserError(f"{name}: more than {MAX_RANGE:,} numbers")
        numbers += range(first, last + 1)
    return numbers


def parse_lengths(name: str, text: str) -> list[int]:
    """Return the lengths of prompts in a text such as `16,32-34`, checked by `check_lengths`."""
    lengths = parse_ranges(name, text)
    check_lengths(lengths, name)
    return lengths


def check_lengths(lengths: Sequence[int], name: str = "lengths") -> None:
    """Refuse lengths of prompts that no model reads, or too many of them.

    Raises:
        UserError: There is none or more than `MAX_LENGTHS`, or one is not a whole number from 1 to
            `MAX_LENGTH`.
    """
    if not lengths:
        raise UserError(f"{name} is empty: give at least one, or None for the usual ones")
    if len(lengths) > MAX_LENGTHS:
        raise UserError(
            f"{name}: {len(lengths):,} lengths are too many, give up to {MAX_LENGTHS:,}"
        )
    for length in lengths:
        try:
            number = 0 if isinstance(length, bool) else operator.index(length)
        except TypeError:
            number = 0
        if number < 1:
            raise UserError(f"{name} must be whole numbers from 1 up, got {length!r}")
        if number > MAX_LENGTH:
            raise UserError(f"{name} must be at most {MAX_LENGTH:,}, got {shorten(f'{number:,}')}")


def shorten(text: str) -> str:
    """Cut a text to the length that an error message repeats."""
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"
