"""Greedy answers to many questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sharpmax.experiments.clrs_text.tokens import Example

MARGIN = 4
"""Tokens that an answer may be longer than the expected one before it is cut off: it is wrong."""


def by_length(examples: Sequence[Example], batch: int) -> list[list[int]]:
    """The examples' numbers, sorted by length, in batches of questions of one length each.

    No batch needs padding: an answer cannot depend on which others it was found beside.
    """
    groups: dict[int, list[int]] = {}
    for place, example in enumerate(examples):
        groups.setdefault(len(example.question), []).append(place)
    return [
        some[at : at + batch]
        for _, some in sorted(groups.items())
        for at in range(0, len(some), batch)
    ]


@torch.inference_mode()
def answers(
    model: Any,
    examples: Sequence[Example],
    end: int,
    *,
    batch: int = 64,
    answered: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """The most likely token after the most likely token, up to `end` or until an answer is longer
    than the expected one by more than a few. `answered` is told how many a batch had.
    """
    said: list[list[int]] = [[] for _ in examples]
    for some in by_length(examples, batch):
        longest = max(len(examples[place].answer) for place in some) + MARGIN
        for place, found in zip(some, _continued(model, examples, some, end, longest), strict=True):
            said[place] = found
        if answered is not None:
            answered(len(some))
    return said


def _continued(
    model: Any, examples: Sequence[Example], some: list[int], end: int, longest: int
) -> list[list[int]]:
    tokens = torch.tensor([examples[place].question for place in some], device=model.device)
    found, cache = [], None
    ended = torch.zeros(len(some), dtype=torch.bool, device=model.device)
    for _ in range(longest):
        output = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        tokens, cache = output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values
        found.append(tokens)
        ended |= tokens[:, 0] == end
        if ended.all():
            break
    rows = torch.cat(found, 1).tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]
