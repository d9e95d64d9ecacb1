"""The retrieval task: items with a key and a value, then keys whose values are asked for.

    start  item item item ...  key? value  key? value  ...

An item is one token, which stands for a key and a value. Each key that is asked for has one item;
all others share the remaining keys. The model is trained to predict the value after each key that
is asked for. In training the items are spread at random over all positions of the context. So the
tests differ from training in the number of items alone, and not in positions never seen.
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


def first_value(config: Config) -> int:
    """Return the token of the first value; items and the keys of questions come before it."""
    return config.keys * config.values + config.keys


def vocabulary(config: Config) -> int:
    """Return the number of tokens: items, keys, values, and the mark of the start."""
    return first_value(config) + config.values + 1


def make_texts(
    config: Config,
    generator: np.random.Generator,
    batch: int,
    items: int,
    questions: int,
    *,
    spread: bool,
) -> Texts:
    """Make a batch of texts.

    Args:
        config: The vocabulary and the context.
        generator: All random numbers come from it.
        batch: The number of texts.
        items: The number of items in each.
        questions: The number of questions in each, at most that of items, and less than that of
            keys.
        spread: Spread the items over all positions of the context; else they are contiguous.
    """
    keys = generator.permuted(np.tile(np.arange(config.keys), (batch, 1)), axis=1)
    asked, others = keys[:, :questions], keys[:, questions:]
    drawn = generator.integers(others.shape[1], size=(batch, items - questions))
    keys = np.concatenate([asked, np.take_along_axis(others, drawn, 1)], axis=1)
    values = generator.integers(config.values, size=keys.shape)
    right = values[:, :questions]
    shuffled = generator.permuted(keys * config.values + values, axis=1)
    question_keys = config.keys * config.values + asked
    pairs = np.stack([question_keys, first_value(config) + right], -1).reshape(batch, -1)
    start = np.full((batch, 1), vocabulary(config) - 1)
    tokens = np.concatenate([start, shuffled, pairs], axis=1)
    length = tokens.shape[1]
    positions = np.tile(np.arange(length), (batch, 1))
    if spread:
        # Short texts are more frequent than long ones.
        room = (config.context - length) * generator.random((batch, 1)) ** 2
        share = generator.random((batch, length))
        positions += (room * share / share.sum(1, keepdims=True)).astype(int).cumsum(1)
    return Texts(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.arange(1 + items, length, 2),
        torch.from_numpy(right),
    )
