"""Parse lists of whole numbers and ranges, such as `0,4-7`, from what users type."""

from __future__ import annotations

import re

from sharpmax._errors import UserError

MAX_RANGE = 100_000
"""Largest number of values in one range, so that a typing error cannot fill the memory."""

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
        numbers += range(first, last + 1)
    return numbers


def shorten(text: str) -> str:
    """Cut a text to the length that an error message repeats."""
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"
