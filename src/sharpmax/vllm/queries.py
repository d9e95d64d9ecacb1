"""Scale the queries of a packed batch by the inverse temperature of each head and token.

vLLM packs the new tokens of all requests into one tensor, without padding between them. A factor on
the logits of a row is a factor on its query, so that any attention kernel can run afterwards.
Everything stays on the device: reading a length back to the host would stall a GPU on every layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from sharpmax._errors import UserError
from sharpmax.torch.length_law import inverse_temperature, log_excess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int

    from sharpmax.results.calibration import Calibration

MEMORY = "_sharpmax_excess"
"""The attribute of a batch's metadata that keeps what all layers share."""


class Metadata(Protocol):
    """What must be known about a batch: the two tensors that all vLLM backends with it share.

    Attributes:
        query_start_loc: Where the new tokens of each request begin in the packed tensor, and where
            the last ones end.
        seq_lens: The length of each request with its new tokens.
    """

    query_start_loc: Int[Tensor, " requests_plus_one"]
    seq_lens: Int[Tensor, " requests"]


def visible_lengths(
    query_start_loc: Int[Tensor, " requests_plus_one"],
    seq_lens: Int[Tensor, " requests"],
    tokens: int,
    window: int | None = None,
) -> Int[Tensor, " tokens"]:
    """Return how many tokens each new token of a packed batch sees, itself included.

    This holds for whole prompts, pieces of prompts, single generated tokens and prompts whose
    beginning is cached: the new tokens are always the last ones of their request.

    Args:
        query_start_loc: Where the new tokens of each request begin, and where the last ones end.
        seq_lens: The length of each request with its new tokens.
        tokens: The number of rows of the packed tensor. Rows behind the last request are padding.
        window: How many tokens a token sees at most, itself included; None for all.

    Returns:
        The lengths, 1 or more. Those of padding have no meaning.
    """
    rows = torch.arange(tokens, dtype=query_start_loc.dtype, device=query_start_loc.device)
    ends = query_start_loc[1:]
    request = torch.searchsorted(ends, rows, right=True).clamp(max=ends.shape[0] - 1)
    visible = (seq_lens[request] - (ends[request] - 1 - rows)).clamp(min=1)
    return visible if window is None else visible.clamp(max=window)


def local_rates(
    rates: Sequence[float], heads: int, rank: int, ranks: int, name: str
) -> tuple[float, ...]:
    """Return the rates of the heads that one process of tensor parallelism computes.

    Args:
        rates: The rates of all heads of the layer.
        heads: The number of heads of this process.
        rank: The number of this process.
        ranks: The number of processes that share the layer.
        name: The name of the layer, for the message.

    Returns:
        One rate per local head.

    Raises:
        UserError: The processes do not share the heads evenly.
    """
    if heads * ranks != len(rates):
        raise UserError(
            f"{name} computes {heads} heads in each of {ranks} processes, and the calibration has "
            f"{len(rates)} for it: use another tensor parallel size"
        )
    return tuple(rates[rank * heads : (rank + 1) * heads])


class QueryScaling:
    """Scale the queries of one attention layer.

    Args:
        rates: The rate of each local head.
        calibration: The calibration, for its law.
        window: How many tokens a token sees at most; None for all.
        device: Where the queries are.
    """

    def __init__(
        self,
        rates: Sequence[float],
        calibration: Calibration,
        window: int | None,
        device: torch.device,
    ) -> None:
        self.rates = torch.tensor(rates, dtype=torch.float32, device=device)
        self.from_tokens, self.law, self.window = calibration.from_tokens, calibration.law, window
        # Decided here on the host: a layer that nothing changes costs nothing.
        self.is_plain = not any(rates)

    def __call__(
        self, query: Float[Tensor, "tokens heads dim"], metadata: Metadata
    ) -> Float[Tensor, "tokens heads dim"]:
        """Return the scaled queries; the same tensor if no head of the layer changes."""
        if self.is_plain:
            return query
        excess = self._excess(query, metadata)[:, None]
        factor = inverse_temperature(self.rates, excess, self.law.low, self.law.high)
        # The product is rounded once to the type of the queries, without a float32 copy of them.
        return torch.mul(query, factor[..., None], out=torch.empty_like(query))

    def _excess(
        self, query: Float[Tensor, "tokens heads dim"], metadata: Metadata
    ) -> Float[Tensor, " tokens"]:
        """Return what depends on the batch and not on the layer; computed once per batch."""
        # What is computed outside of a CUDA graph would be a constant inside of it.
        capturing = query.is_cuda and torch.cuda.is_current_stream_capturing()
        known: dict[Any, Any] = metadata.__dict__.setdefault(MEMORY, {})
        key = (query.shape[0], self.window, capturing)
        lengths, starts, excess = known.get(key, (None, None, None))
        # vLLM copies metadata, with what we keep on it, and replaces tensors in the copy.
        if lengths is not metadata.seq_lens or starts is not metadata.query_start_loc:
            visible = visible_lengths(
                metadata.query_start_loc, metadata.seq_lens, query.shape[0], self.window
            )
            excess = log_excess(visible.float(), self.from_tokens)
            known[key] = metadata.seq_lens, metadata.query_start_loc, excess
        return excess
