"""Prompts of any length for a scan: the paper's maximum, the user's text, a passkey.

A longer prompt begins as the shorter ones do, so that only the length changes from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax._ranges import check_lengths
from sharpmax.hf.model_info import context_length, is_encoder_decoder
from sharpmax.hf.progress import ProgressCallback

PromptFunction = Callable[[int], "str | list[int]"]
"""A user's prompt: from a length to a text or to tokens."""

DEFAULT_NUMBERS = tuple(2**power for power in range(3, 10))
"""8 to 512 numbers."""
DEFAULT_TOKENS = tuple(2**power for power in range(6, 13))
"""64 to 4,096 tokens."""

COUNTED_UNITS = ("tokens", "numbers")
"""Units with at least one token each: a length above the context is refused without a prompt."""

FILLER = (
    "The river runs past the mill and on to the sea. A heron stands in the shallows and waits. "
    "Clouds drift over the hills, and the road is quiet. Somebody has left a gate open. "
)
"""Repeated around a passkey, as in the passkey tests of long-context models."""


@dataclass(frozen=True)
class Prompt:
    """A kind of prompt.

    Attributes:
        name: The name in results.
        unit: What the length counts.
        default_lengths: The lengths to use if none are given.
        tokens: Makes the tokens of one length.
        max_length: The longest that it can make, or None if there is no limit.
    """

    name: str
    unit: str
    default_lengths: tuple[int, ...]
    tokens: Callable[[int], list[int]]
    max_length: int | None = None


def choose_prompt(
    prompt: str | PromptFunction,
    tokenizer: Any,
    *,
    text: str | Path | None = None,
    seed: int = 0,
) -> Prompt:
    """Return the prompt of this name, or the one that the user's function makes.

    Raises:
        UserError: The name is unknown, or `text` is missing, unreadable or not needed.
    """
    if text is not None and prompt != "text":
        raise UserError(f'text={str(text)!r} goes with prompt="text", not with {prompt!r}')
    if callable(prompt):
        return _function_prompt(prompt, tokenizer)
    if prompt == "max":
        return _maximum_prompt(tokenizer, seed)
    if prompt == "text":
        return _text_prompt(tokenizer, text)
    if prompt == "passkey":
        return _passkey_prompt(tokenizer, seed)
    raise UserError(
        f"unknown prompt {prompt!r}: expected one of max, text, passkey, or a function of the "
        "length"
    )


def make_inputs(
    model: PreTrainedModel,
    prompt: Prompt,
    lengths: Sequence[int] | None,
    progress: ProgressCallback | None = None,
) -> dict[int, list[int]]:
    """Return the tokens of each length, or of the default lengths that fit the model.

    All are made before the model reads any of them, so that mistakes are reported at once. They
    are made from the shortest on, and the first that is too long is the last.

    Args:
        model: The model that they are for.
        prompt: What makes them.
        lengths: The lengths, or None for the usual ones.
        progress: Called with 0 before each is made, so that the caller can stop.

    Raises:
        UserError: The model does not read tokens, a length is not a positive integer, or a prompt
            is too long for the text or for the model's context.
    """
    _require_token_model(model)
    context = context_length(model)
    if lengths is None:
        usual = [n for n in prompt.default_lengths if n <= (prompt.max_length or n)]
        fitting, _ = _make_while_fitting(prompt, usual, context, progress)
        if not fitting:
            raise UserError(
                f"none of the usual lengths of prompt {prompt.name!r} fits: give lengths"
            )
        return fitting
    check_lengths(lengths)
    for length in lengths:
        if prompt.max_length is not None and length > prompt.max_length:
            raise UserError(
                f"length {length:,}: {prompt.name} has {prompt.max_length:,} tokens only; give a "
                "longer text or smaller lengths"
            )
    inputs, excess = _make_while_fitting(prompt, sorted(set(lengths)), context, progress)
    if excess is not None:
        length, count = excess
        least = "at least " if prompt.unit == "numbers" and count == length else ""
        raise UserError(
            f"{length:,} {prompt.unit} are {least}{count:,} tokens, and the context of this "
            f"model is {context:,}: give lengths up to "
            + (f"{max(inputs):,}, of those asked for" if inputs else "fewer than that")
        )
    return inputs


def _make_while_fitting(
    prompt: Prompt,
    lengths: Sequence[int],
    context: int | None,
    progress: ProgressCallback | None,
) -> tuple[dict[int, list[int]], tuple[int, int] | None]:
    """Return the inputs up to the first that exceeds the context, and its length and tokens."""
    inputs: dict[int, list[int]] = {}
    for length in lengths:
        if progress is not None:
            progress(0.0)
        if context is not None and length > context and prompt.unit in COUNTED_UNITS:
            return inputs, (length, length)
        tokens = prompt.tokens(length)
        if context is not None and len(tokens) > context:
            return inputs, (length, len(tokens))
        inputs[length] = tokens
    return inputs, None


def _require_token_model(model: PreTrainedModel) -> None:
    if is_encoder_decoder(model):
        raise UserError(f"{type(model).__name__} is an encoder-decoder: scan model.get_encoder()")
    if model.main_input_name != "input_ids":
        raise UserError(
            f"{type(model).__name__} reads {model.main_input_name} and not tokens: it cannot be "
            "scanned with a text"
        )


def _maximum_prompt(tokenizer: Any, seed: int) -> Prompt:
    """Return the prompt of the paper's Figure 3, with numbers uniform in 0 to 999."""

    def tokens(length: int) -> list[int]:
        numbers = np.random.default_rng(seed).integers(0, 1000, size=length)
        return encode(tokenizer, maximum_question(numbers))

    return Prompt("max", "numbers", DEFAULT_NUMBERS, tokens)


def maximum_question(numbers: np.ndarray) -> str:
    """Return the paper's question for the maximum of these numbers."""
    sequence = ", ".join(map(str, numbers))
    return f"What is the maximum in the following sequence: {sequence}? The maximum is:"


def _text_prompt(tokenizer: Any, text: str | Path | None) -> Prompt:
    """Return the prompt of a file's first tokens."""
    if text is None:
        raise UserError('prompt="text" needs a file: give its path as text=')
    path = Path(text)
    try:
        content = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: give a text file") from error
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a text file in UTF-8") from error
    tokens = encode(tokenizer, content)
    if not tokens:
        raise UserError(f"{path} is empty: give a text file with something in it")
    return Prompt(
        f"text {path.name}", "tokens", DEFAULT_TOKENS, lambda length: tokens[:length], len(tokens)
    )


def _passkey_prompt(tokenizer: Any, seed: int) -> Prompt:
    """Return the prompt that hides one five-digit number in filler and asks for it."""
    generator = np.random.default_rng(seed)
    key, depth = int(generator.integers(10_000, 100_000)), float(generator.random())
    passkey = Passkey.create(tokenizer, key)
    usual = tuple(length for length in DEFAULT_TOKENS if length >= passkey.min_length)
    return Prompt("passkey", "tokens", usual, lambda length: passkey.tokens(length, depth))


def _function_prompt(function: PromptFunction, tokenizer: Any) -> Prompt:
    name = getattr(function, "__name__", type(function).__name__)

    def tokens(length: int) -> list[int]:
        prompt = function(length)
        if isinstance(prompt, str):
            return encode(tokenizer, prompt)
        numbers = [int(token) for token in prompt]
        if not numbers:
            raise UserError(f"the prompt function {name} gave no tokens for length {length}")
        return numbers

    return Prompt(f"function {name}", "length", DEFAULT_TOKENS, tokens)


@dataclass(frozen=True)
class Passkey:
    """The parts of a text that hides a number in filler, as tokens."""

    NEEDLE: ClassVar[str] = "\nThe passkey is {key}. Remember it: {key} is the passkey.\n"
    QUESTION: ClassVar[str] = "\nWhat is the passkey? The passkey is"

    start: list[int]
    needle: list[int]
    filler: list[int]
    question: list[int]

    @staticmethod
    def create(tokenizer: Any, key: int) -> Passkey:
        start = "There is a passkey hidden in this text. Remember it.\n"
        needle = Passkey.NEEDLE.format(key=key)
        return Passkey(
            encode(tokenizer, start),
            *(
                encode(tokenizer, text, special_tokens=False)
                for text in (needle, FILLER, Passkey.QUESTION)
            ),
        )

    @property
    def min_length(self) -> int:
        """The number of tokens of a text without filler."""
        return len(self.start) + len(self.needle) + len(self.question)

    def needle_start(self, length: int, depth: float) -> int:
        """Return the position of the needle's first token."""
        return len(self.start) + round(depth * (length - self.min_length))

    def tokens(self, length: int, depth: float) -> list[int]:
        """Return exactly `length` tokens, with the needle at this share of the filler."""
        room = length - self.min_length
        if room < 0:
            raise UserError(
                f"a passkey prompt has at least {self.min_length} tokens, got length {length}"
            )
        filler = self.filler * (room // len(self.filler) + 1)
        before = self.needle_start(length, depth) - len(self.start)
        return [
            *self.start,
            *filler[:before],
            *self.needle,
            *filler[: room - before],
            *self.question,
        ]


def encode(tokenizer: Any, text: str, *, special_tokens: bool = True) -> list[int]:
    """Return the tokens of a text, with the special tokens that the model expects around it."""
    # verbose=False: we refuse texts that are longer than the context, with our own message.
    encoding = tokenizer(text, add_special_tokens=special_tokens, verbose=False)
    return list(encoding["input_ids"])
