"""Ordinary text that a tuned model must still predict as before.

The package ships fifteen texts of different kinds, written for this purpose. They are cut into
chunks: most are for tuning, some for validation, some to measure the cost at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.evaluate.scoring import keep_logits
from sharpmax.hf.patch.wrappers import input_device, is_dispatched
from sharpmax.hf.scan.prompts import encode

if TYPE_CHECKING:
    from jaxtyping import Float, Int

CHUNK_TOKENS = 768
"""Tokens per chunk: long enough for rates to act, short enough for a step to be quick."""
MIN_PREDICTED = 64
"""A chunk has at least this many tokens after those up to which nothing changes."""
PERIOD = 5
"""Of each 5 chunks the fourth is for validation and the fifth for the final check."""


@dataclass(frozen=True)
class Guard:
    """Chunks of ordinary text, as tokens.

    Attributes:
        name: Where the text comes from.
        tuning: Chunks to tune on.
        validation: Chunks that decide when to stop.
        check: Chunks to measure the final cost on.
    """

    name: str
    tuning: tuple[tuple[int, ...], ...]
    validation: tuple[tuple[int, ...], ...]
    check: tuple[tuple[int, ...], ...]

    @property
    def sha256(self) -> str:
        content = json.dumps([self.tuning, self.validation, self.check])
        return hashlib.sha256(content.encode()).hexdigest()


def load_guard(
    tokenizer: Any,
    guard: str | Path | Sequence[str] | None,
    from_tokens: int,
    context: int | None = None,
) -> Guard:
    """Cut ordinary text into chunks of tokens.

    Args:
        tokenizer: The model's tokenizer.
        guard: The path of a text file, a list of texts, or None for the texts of the package.
        from_tokens: The number of tokens up to which nothing changes.
        context: The number of tokens that the model can read, if that is known.

    Raises:
        UserError: The file cannot be read, or the text is too short.
    """
    name, texts = _read_texts(guard)
    start = encode(tokenizer, "")  # the special tokens that the model expects at the beginning
    size = max(CHUNK_TOKENS, 2 * from_tokens)
    size = size if context is None else min(size, context)
    shortest = from_tokens + MIN_PREDICTED
    chunks = []
    for text in texts:
        tokens = encode(tokenizer, text, special_tokens=False)
        for first in range(0, len(tokens), size - len(start)):
            chunk = (*start, *tokens[first : first + size - len(start)])
            if len(chunk) >= shortest:
                chunks.append(chunk)
    if len(chunks) < PERIOD:
        raise UserError(
            f"the guard text {name} has {len(chunks)} chunks of {shortest:,} to {size:,} tokens: "
            f"give at least {PERIOD}, which is {PERIOD * size:,} tokens of ordinary text"
        )
    validation, check = chunks[PERIOD - 2 :: PERIOD], chunks[PERIOD - 1 :: PERIOD]
    tuning = [chunk for index, chunk in enumerate(chunks) if index % PERIOD < PERIOD - 2]
    return Guard(name, tuple(tuning), tuple(validation), tuple(check))


def _read_texts(guard: str | Path | Sequence[str] | None) -> tuple[str, list[str]]:
    if guard is None:
        folder = resources.files("sharpmax.hf.tune") / "guard_text"
        files = sorted(folder.iterdir(), key=lambda file: file.name)
        return "of sharpmax", [file.read_text("utf-8") for file in files]
    if isinstance(guard, (str, Path)):
        try:
            return f"in {guard}", [Path(guard).read_text("utf-8")]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the guard text {guard}: {error}") from error
    if not all(isinstance(text, str) for text in guard):
        raise UserError("guard: expected the path of a text file, a list of texts, or None")
    return "given", list(guard)


def text_logits(
    model: PreTrainedModel, chunk: Sequence[int], positions: Int[Tensor, " positions"]
) -> Float[Tensor, "positions vocabulary"]:
    """Return the log-probabilities of the next token after these positions of a chunk."""
    device = input_device(model)
    tokens = torch.tensor([chunk], device=device)
    # The hidden states may be on another device than the tokens, where accelerate would put a
    # tensor of positions. Numbers select on any device.
    keep = keep_logits(model, positions.tolist() if is_dispatched(model) else positions.to(device))
    logits = model(input_ids=tokens, use_cache=False, **keep).logits[0]
    return (logits if keep else logits[positions]).float().log_softmax(-1)


def divergence(
    plain: Float[Tensor, "positions vocabulary"], tuned: Float[Tensor, "positions vocabulary"]
) -> Float[Tensor, ""]:
    """Return the mean over positions of KL(plain || tuned), from log-probabilities, in nats."""
    return (plain.exp() * (plain - tuned)).sum(-1).mean()


@torch.no_grad()
def text_nats(model: PreTrainedModel, chunk: Sequence[int], first: int) -> list[float]:
    """Return the negative log-probability of each token of a chunk from `first` on, in nats."""
    positions = torch.arange(first - 1, len(chunk) - 1)
    log_probabilities = text_logits(model, chunk, positions)
    following = torch.tensor(chunk[first:], device=log_probabilities.device)
    return (-log_probabilities.gather(1, following[:, None])[:, 0]).tolist()
