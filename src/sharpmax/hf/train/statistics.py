"""Attention statistics of one forward pass, per layer and head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.patch.layers import Layer, attention_layers, count_heads
from sharpmax.hf.patch.parallel import gather_heads, share_of
from sharpmax.hf.train.rows import MEANS, STATISTICS, Call, measure_rows
from sharpmax.hf.train.watch import watchable_model, watched_layers

if TYPE_CHECKING:
    from jaxtyping import Float

ROWS = 32
"""Rows of each sequence that are measured by default."""
SEQUENCES = 4
"""Sequences of a batch that are measured by default."""


class AttentionStatistics:
    """Statistics of every head, averaged over the rows that were measured.

    Each is an array [layer, head], NaN where nothing was measured: `entropy` and `varentropy` of
    the weights in nats and squared nats, `max_logit` the largest logit of any row, `max_weight` the
    largest weight of a row, and `first_share` the weight on the first token.

    Args:
        layers: All attention layers of the model.
        rows: The number of rows of each sequence, or their positions.
        sequences: The number of sequences of the batch.
    """

    def __init__(self, layers: list[Layer], rows: int | Sequence[int], sequences: int) -> None:
        self.layers, self.rows, self.sequences = layers, rows, sequences
        self._measured: dict[int, Tensor] = {}
        self._sums: Float[np.ndarray, "layers heads sums"] | None = None

    def record(self, layer: Layer, call: Call) -> None:
        """Measure the first call of a layer, but not later ones, as in gradient checkpointing.

        Args:
            layer: The layer.
            call: A call of its attention.
        """
        if layer.index not in self._measured:
            self._measured[layer.index] = measure_rows(call, self.rows, self.sequences)

    @property
    def sums(self) -> Float[np.ndarray, "layers heads sums"]:
        """Sums over rows, their number, and the largest logit, of all heads of the model."""
        if self._sums is None:
            heads = [count_heads(layer) for layer in self.layers]
            sums = np.full((len(heads), max(heads), len(MEANS) + 2), np.nan)
            for layer, size in zip(self.layers, heads, strict=True):
                measured = self._measured.get(layer.index)
                if measured is not None:
                    own = measured.double().cpu().numpy()
                    sums[layer.index, :size] = gather_heads(own, share_of(layer))
            self._sums = sums
            self._measured = {}
        return self._sums

    def combine_processes(self) -> None:
        """Combine what the processes of a distributed training have measured; all must call it."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            parts: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(parts, self.sums)
            stacked = np.stack(parts)
            measured = ~np.isnan(stacked).all(0)
            total = np.nansum(stacked, axis=0)
            total[..., -1] = np.fmax.reduce(stacked[..., -1])
            self._sums = np.where(measured, total, np.nan)

    def array(self, name: str) -> Float[np.ndarray, "layers heads"]:
        """Return a statistic by its name.

        Args:
            name: One of `entropy`, `varentropy`, `max_logit`, `max_weight` and `first_share`.

        Returns:
            An array [layer, head].

        Raises:
            UserError: The name is unknown.
        """
        if name not in STATISTICS:
            raise UserError(f"unknown statistic {name!r}: expected one of {', '.join(STATISTICS)}")
        count = self.sums[..., len(MEANS)]
        if name == "max_logit":
            return np.where(count > 0, self.sums[..., -1], np.nan)
        with np.errstate(invalid="ignore"):
            return self.sums[..., MEANS.index(name)] / np.where(count > 0, count, np.nan)

    def __getattr__(self, name: str) -> Float[np.ndarray, "layers heads"]:
        if name in STATISTICS:
            return self.array(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@contextmanager
def attention_statistics(
    model: PreTrainedModel, *, rows: int | Sequence[int] = ROWS, sequences: int = SEQUENCES
) -> Iterator[AttentionStatistics]:
    """Record attention statistics of the next forward pass inside a `with` block.

    The model runs its own attention, by sdpa, flash or eager, and nothing about it changes: outputs
    and gradients are the same bit for bit. The first call of each layer inside the block is
    measured, on a few rows, beside it. With `sharpen`, they are those of the logits before
    sharpening.

    Args:
        model: A transformers model, or a wrapper such as DistributedDataParallel.
        rows: The number of rows of each sequence, evenly spaced over its positions, or a list of
            positions.
        sequences: The number of sequences of the batch.

    Yields:
        The statistics, which can be read after the forward pass.

    Raises:
        UserError: The model is not supported or is compiled, or a number is out of range.

    Examples:
        >>> with shf.attention_statistics(model) as statistics:
        ...     model(**batch).loss.backward()
        >>> statistics.entropy[3, 5]  # layer 3, head 5, in nats
    """
    check_sampling(rows, sequences)
    inner = watchable_model(model)
    layers = attention_layers(inner)
    statistics = AttentionStatistics(layers, rows, sequences)
    with watched_layers(inner, layers, statistics.record):
        yield statistics


def check_sampling(rows: int | Sequence[int], sequences: int) -> None:
    """Refuse numbers of rows and sequences that are out of range."""
    positions = rows if isinstance(rows, (list, tuple)) else ()
    if positions:
        if not all(type(row) is int and row >= 0 for row in positions):
            raise UserError(f"rows={rows!r}: give positions of at least 0, or a number of rows")
    elif type(rows) is not int or rows < 1:
        raise UserError(f"rows={rows!r}: give a whole number of at least 1, or positions")
    if type(sequences) is not int or sequences < 1:
        raise UserError(f"sequences={sequences!r}: give a whole number of at least 1")
