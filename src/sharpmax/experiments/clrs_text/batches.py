"""Which samples a step of training sees, and their tensors.

All that is random follows from the seed and the number of the step, so that a training that was
stopped goes on with the samples that would have come next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax.experiments.clrs_text.settings import Training
from sharpmax.experiments.clrs_text.tokens import Example

if TYPE_CHECKING:
    from jaxtyping import Int

IGNORED = -100
"""The label of a token that is not part of an answer."""
NEARLY = 0.6
"""The least share of the longest sample's length that another may have to be computed with it."""


class Batch(NamedTuple):
    """Right-padded: with causal attention no token sees what comes after it, so that no mask is
    needed, and attention stays as fast as it can be.
    """

    tokens: Int[Tensor, "sample token"]
    labels: Int[Tensor, "sample kept"]
    """What follows each of the last `kept` tokens, where that belongs to the answer."""

    @property
    def kept(self) -> int:
        return self.labels.shape[1]


class Schedule:
    """The samples of each step: every sample once an epoch, in a new order.

    While sizes are let in, an epoch is one of those that are in already.
    """

    def __init__(self, sizes: Sequence[int], training: Training, seed: int) -> None:
        self.training, self.seed = training, seed
        self.sizes = np.asarray(sizes)
        self.known = np.unique(self.sizes)
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def largest(self, step: int) -> int:
        """The largest size that a step may see.

        By the square of the time: what is learned at the smallest sizes takes longest, and once it
        is learned the next sizes are quick.
        """
        letting_in = self.training.growing * self.training.steps
        if step >= letting_in:
            return int(self.known[-1])
        return int(self.known[int(len(self.known) * (step / letting_in) ** 2)])

    def at(self, step: int) -> list[int]:
        """The numbers of the step's samples."""
        batch, largest = self.training.batch, self.largest(step)
        count = int((self.sizes <= largest).sum())
        places = range(step * batch, (step + 1) * batch)
        return [int(self._epoch(largest, place // count)[place % count]) for place in places]

    def _shuffled(self, largest: int, epoch: int) -> Int[np.ndarray, " samples"]:
        """All that are in, shuffled."""
        pool = np.flatnonzero(self.sizes <= largest)
        return np.random.default_rng((self.seed, largest, epoch)).permutation(pool)


def cut(examples: Sequence[Example], micro: int, together: int = 1) -> list[list[Example]]:
    """Sorted by length, at most `micro` at a time and only what is nearly of one length, since
    padding is computed too; `together`, and multiples of it, are never parted.
    """
    ordered = sorted(examples, key=lambda example: example.length, reverse=True)
    groups: list[list[Example]] = []
    for at in range(0, len(ordered), together):
        some = ordered[at : at + together]
        if (
            groups
            and len(groups[-1]) + len(some) <= micro
            and some[-1].length >= NEARLY * groups[-1][0].length
        ):
            groups[-1].extend(some)
        else:
            groups.append(some)
    return groups


def collate(examples: Sequence[Example], pad: int) -> Batch:
    """Samples as tensors."""
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
