"""The samples of each training step, and their tensors.

All randomness follows from the seed and the number of the step, so a resumed training continues
with the samples that would have come next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax.experiments.clrs_text.config import Training
from sharpmax.experiments.clrs_text.tokenization import Example

if TYPE_CHECKING:
    from jaxtyping import Int

IGNORED = -100
"""Label of a token that is not part of an answer."""
SIMILAR = 0.6
"""Samples are computed together if the shortest has at least this share of the longest's length."""


class Batch(NamedTuple):
    """Samples padded on the right.

    With causal attention no token sees what comes after it. So no mask is needed, and attention
    stays fast.
    """

    tokens: Int[Tensor, "samples tokens"]
    labels: Int[Tensor, "samples kept"]
    """For each of the last `kept` tokens the next token, if it belongs to the answer."""

    @property
    def kept(self) -> int:
        """Number of tokens, at the end, whose logits are needed."""
        return self.labels.shape[1]


class Schedule:
    """The samples of each step: every sample once per epoch, in a new order.

    While sizes are being added, an epoch contains the sizes that have been added already.
    """

    def __init__(self, sizes: Sequence[int], training: Training, seed: int) -> None:
        self.training, self.seed = training, seed
        self.sizes = np.asarray(sizes)
        self.known_sizes = np.unique(self.sizes)
        self._epoch = lru_cache(maxsize=2)(self._shuffle)

    def largest_size(self, step: int) -> int:
        """Return the largest size in a step.

        It grows with the square of the time: what is learned at the smallest sizes takes longest,
        and the next sizes are then quick.
        """
        growing_steps = self.training.growing * self.training.steps
        if step >= growing_steps:
            return int(self.known_sizes[-1])
        return int(self.known_sizes[int(len(self.known_sizes) * (step / growing_steps) ** 2)])

    def indices(self, step: int) -> list[int]:
        """Return the indices of the samples of a step."""
        batch, largest = self.training.batch, self.largest_size(step)
        count = int((self.sizes <= largest).sum())
        positions = range(step * batch, (step + 1) * batch)
        return [int(self._epoch(largest, at // count)[at % count]) for at in positions]

    def _shuffle(self, largest: int, epoch: int) -> Int[np.ndarray, " samples"]:
        """Return the indices of all samples up to this size in random order."""
        pool = np.flatnonzero(self.sizes <= largest)
        return np.random.default_rng((self.seed, largest, epoch)).permutation(pool)


def split_by_length(
    examples: Sequence[Example], micro: int, together: int = 1
) -> list[list[Example]]:
    """Split examples into groups of at most `micro` and of similar length.

    Padding is computed too, so long and short examples are kept apart. The size of every group is a
    multiple of `together` if the number of examples is.
    """
    ordered = sorted(examples, key=lambda example: example.length, reverse=True)
    groups: list[list[Example]] = []
    for begin in range(0, len(ordered), together):
        block = ordered[begin : begin + together]
        if (
            groups
            and len(groups[-1]) + len(block) <= micro
            and block[-1].length >= SIMILAR * groups[-1][0].length
        ):
            groups[-1].extend(block)
        else:
            groups.append(block)
    return groups


def collate(examples: Sequence[Example], pad: int) -> Batch:
    """Pad examples to one length and return their tensors."""
    longest = max(example.length for example in examples)
    first = min(len(example.question) for example in examples) - 1
    tokens = torch.full((len(examples), longest - 1), pad)
    labels = torch.full((len(examples), longest - 1), IGNORED)
    for row, example in enumerate(examples):
        whole = torch.tensor(example.question + example.answer)
        tokens[row, : len(whole) - 1] = whole[:-1]
        begin = len(example.question) - 1
        labels[row, begin : len(whole) - 1] = whole[begin + 1 :]
    return Batch(tokens, labels[:, first:])
