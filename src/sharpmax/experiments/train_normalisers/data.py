"""The retrieval task: pairs of a key and a value, then keys whose values are asked for.

    start  k1 v1  k2 v2  ...  kn vn  ask  k7 v7  k2 v2  ...

Each key, value and mark is a token. The model is trained to predict the value after each key that
is asked for. In training the pairs are spread at random over all positions of the context. So the
tests differ from training in the number of pairs alone, and not in positions never seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sharpmax.experiments.train_normalisers.config import Config

if TYPE_CHECKING:
    from jaxtyping import Int


@dataclass(frozen=True)
class Texts:
    """A batch of texts of the same length.

    Attributes:
        tokens: The tokens.
        positions: Their positions.
        asked: Where the keys that are asked for stand: the model predicts the value after them.
        values: The right values, as numbers from 0.
    """

    tokens: Int[Tensor, "batch token"]
    positions: Int[Tensor, "batch token"]
    asked: Int[Tensor, " question"]
    values: Int[Tensor, "batch question"]

    def row(self, number: int) -> Texts:
        """Return one text as a batch."""
        part = slice(number, number + 1)
        return Texts(self.tokens[part], self.positions[part], self.asked, self.values[part])


def vocabulary(config: Config) -> int:
    """Return the number of tokens: keys, values, the mark of the start and that of questions."""
    return config.keys + config.values + 2


def make_texts(
    config: Config,
    generator: np.random.Generator,
    batch: int,
    pairs: int,
    questions: int,
    *,
    spread: bool,
) -> Texts:
    """Make a batch of texts.

    Args:
        config: The vocabulary and the context.
        generator: All random numbers come from it.
        batch: The number of texts.
        pairs: The number of pairs in each.
        questions: The number of questions in each, at most that of pairs.
        spread: Spread the pairs over all positions of the context; else they are contiguous.
    """
    keys = _choose(generator, batch, config.keys, pairs)
    values = generator.integers(config.values, size=(batch, pairs))
    asked = _choose(generator, batch, pairs, questions)
    right = np.take_along_axis(values, asked, 1)
    start, ask = config.keys + config.values, config.keys + config.values + 1
    tokens = np.concatenate(
        [
            np.full((batch, 1), start),
            _interleave(keys, config.keys + values),
            np.full((batch, 1), ask),
            _interleave(np.take_along_axis(keys, asked, 1), config.keys + right),
        ],
        axis=1,
    )
    length = tokens.shape[1]
    positions = np.broadcast_to(np.arange(length), tokens.shape)
    first_question = 2 + 2 * pairs
    if spread:
        gaps = np.zeros(tokens.shape, int)
        # Between pairs, never inside one.
        between = [*range(1, first_question, 2), *range(first_question, length, 2)]
        room = (config.context - length) * generator.random((batch, 1)) ** 2
        share = generator.random((batch, len(between)))
        gaps[:, between] = (room * share / share.sum(1, keepdims=True)).astype(int)
        positions = positions + gaps.cumsum(1)
    return Texts(
        torch.from_numpy(tokens),
        torch.from_numpy(np.ascontiguousarray(positions)),
        torch.arange(first_question, length, 2),
        torch.from_numpy(right),
    )


def _choose(
    generator: np.random.Generator, batch: int, total: int, count: int
) -> Int[np.ndarray, "batch count"]:
    """Return different numbers below `total` in each row."""
    return np.stack([generator.choice(total, count, replace=False) for _ in range(batch)])


def _interleave(
    first: Int[np.ndarray, "batch pair"], second: Int[np.ndarray, "batch pair"]
) -> Int[np.ndarray, "batch token"]:
    return np.stack([first, second], axis=-1).reshape(len(first), -1)
