"""Inputs of any length for a scan: the paper's maximum, a text of the user's, a passkey.

Longer ones begin as the shorter ones do, so that from one length to the next nothing changes but
the length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sharpmax._errors import UserError

UserPrompt = Callable[[int], "str | list[int]"]
"""From a length to a text or to tokens."""

NUMBERS = tuple(2**power for power in range(3, 10))
"""8 to 512 numbers."""
TOKENS = tuple(2**power for power in range(6, 13))
"""64 to 4,096 tokens."""

FILLER = (
    "The river runs past the mill and on to the sea. A heron stands in the shallows and waits. "
    "Clouds drift over the hills, and the road is quiet. Somebody has left a gate open. "
)
"""Said over and over, as in the passkey tests of long-context models."""


@dataclass(frozen=True)
class Prompt:
    """A kind of input: `tokens(length)` makes one."""

    name: str
    unit: str
    """What the length counts."""
    lengths: tuple[int, ...]
    """Which are usual."""
    tokens: Callable[[int], list[int]]
    most: int | None = None
    """The longest that it can make."""


def choose(
    prompt: str | UserPrompt, tokenizer: Any, *, text: str | Path | None = None, seed: int = 0
) -> Prompt:
    """The prompt of this name, or the user's own function of a length."""
    if text is not None and prompt != "text":
        raise UserError(f'text={str(text)!r} goes with prompt="text", not with {prompt!r}')
    if callable(prompt):
        return _own(prompt, tokenizer)
    if prompt not in KINDS:
        raise UserError(
            f"unknown prompt {prompt!r}: expected one of {', '.join(KINDS)}, or a function of the "
            "length"
        )
    return KINDS[prompt](tokenizer, text, seed)


def maximum(tokenizer: Any, text: str | Path | None, seed: int) -> Prompt:
    """The prompt of the paper's Figure 3, over whole numbers uniform in 0 to 999."""

    def tokens(length: int) -> list[int]:
        numbers = np.random.default_rng(seed).integers(0, 1000, size=length)
        return encoded(tokenizer, maximum_question(numbers))

    return Prompt("max", "numbers", NUMBERS, tokens)


def maximum_question(numbers: np.ndarray) -> str:
    sequence = ", ".join(map(str, numbers))
    return f"What is the maximum in the following sequence: {sequence}? The maximum is:"


def from_text(tokenizer: Any, text: str | Path | None, seed: int) -> Prompt:
    """The first tokens of a file."""
    if text is None:
        raise UserError('prompt="text" needs a file: give its path as text=')
    path = Path(text)
    try:
        content = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: give a text file") from error
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a text file in UTF-8") from error
    every = encoded(tokenizer, content)
    if not every:
        raise UserError(f"{path} is empty: give a text file with something in it")
    return Prompt(f"text {path.name}", "tokens", TOKENS, lambda length: every[:length], len(every))


def passkey(tokenizer: Any, text: str | Path | None, seed: int) -> Prompt:
    """One five-digit number hidden in filler, and the question for it: exactly `length` tokens."""
    generator = np.random.default_rng(seed)
    key, depth = int(generator.integers(10_000, 100_000)), float(generator.random())
    hidden = Passkey.of(tokenizer, key)
    usual = tuple(length for length in TOKENS if length >= hidden.least)
    return Prompt("passkey", "tokens", usual, lambda length: hidden.tokens(length, depth))


@dataclass(frozen=True)
class Passkey:
    """A number to be hidden in filler, as tokens."""

    QUESTION: ClassVar[str] = "\nWhat is the passkey? The passkey is"

    start: list[int]
    needle: list[int]
    filler: list[int]
    question: list[int]

    @staticmethod
    def of(tokenizer: Any, key: int) -> Passkey:
        start = "There is a passkey hidden in this text. Remember it.\n"
        needle = f"\nThe passkey is {key}. Remember it: {key} is the passkey.\n"
        return Passkey(
            encoded(tokenizer, start),
            *(plain(tokenizer, text) for text in (needle, FILLER, Passkey.QUESTION)),
        )

    @property
    def least(self) -> int:
        """Tokens of a text without filler."""
        return len(self.start) + len(self.needle) + len(self.question)

    def tokens(self, length: int, depth: float) -> list[int]:
        """Exactly `length` tokens, with the key at this share of the filler."""
        if length < self.least:
            raise UserError(
                f"a passkey prompt has at least {self.least} tokens, got length {length}"
            )
        room = length - self.least
        before = round(depth * room)
        return [
            *self.start,
            *_repeated(self.filler, before),
            *self.needle,
            *_repeated(self.filler, room - before),
            *self.question,
        ]


KINDS: dict[str, Callable[[Any, str | Path | None, int], Prompt]] = {
    "max": maximum,
    "text": from_text,
    "passkey": passkey,
}


def _own(function: UserPrompt, tokenizer: Any) -> Prompt:
    name = getattr(function, "__name__", type(function).__name__)

    def tokens(length: int) -> list[int]:
        made = function(length)
        if isinstance(made, str):
            return encoded(tokenizer, made)
        found = [int(token) for token in made]
        if not found:
            raise UserError(f"the prompt function {name} gave no tokens for length {length}")
        return found

    return Prompt(f"function {name}", "length", TOKENS, tokens)


def encoded(tokenizer: Any, text: str) -> list[int]:
    """With the special tokens that the model expects at the beginning."""
    # verbose=False: a text that is longer than the model's context is cut, or refused, by us.
    return list(tokenizer(text, verbose=False)["input_ids"])


def plain(tokenizer: Any, text: str) -> list[int]:
    """Without them."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _repeated(tokens: list[int], length: int) -> list[int]:
    return (tokens * (length // len(tokens) + 1))[:length]
