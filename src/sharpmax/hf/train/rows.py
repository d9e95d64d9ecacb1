"""Statistics of a few rows of attention, computed beside the model's own attention.

The rows are so few that their weights can be held whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sharpmax import _array
from sharpmax._errors import UserError
from sharpmax.hf.patch.attention import is_causal
from sharpmax.hf.patch.masks import WindowMask
from sharpmax.hf.train.head_normaliser import SUBMODULE, HeadNormaliser

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

MEANS = ("entropy", "varentropy", "max_weight", "first_share")
"""Statistics that are averaged over rows."""
STATISTICS = ("entropy", "varentropy", "max_logit", "max_weight", "first_share")
"""All statistics. The largest logit is that of all rows."""


@dataclass(frozen=True)
class Call:
    """One call of a layer's attention function, as transformers makes it.

    Attributes:
        implementation: The name of the attention implementation.
        module: The layer.
        query: The queries.
        key: The keys.
        mask: The mask, in the form that the implementation takes.
        options: The other arguments.
    """

    implementation: str
    module: nn.Module
    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    mask: Any
    options: dict[str, Any]

    @property
    def flash(self) -> bool:
        """Whether the implementation takes padding instead of a mask, and packed sequences."""
        return "flash" in self.implementation


@torch.no_grad()
def measure_rows(
    call: Call, rows: int | Sequence[int], sequences: int
) -> Float[Tensor, "heads statistics"]:
    """Measure a few rows of every head in the first sequences.

    Entropies are in nats. They are those of softmax(logits), or of the weights of a layer with
    another normaliser, divided by their sum. Sinks and dropout are not counted. Rows of padding are
    left out.

    Args:
        call: The call.
        rows: The number of rows of each sequence, or their positions.
        sequences: The number of sequences of the batch.

    Returns:
        Per head the sums of `MEANS` over the rows, the number of rows, and the largest logit.
    """
    query, key = call.query[:sequences].detach(), call.key[:sequences].detach()
    picked = pick_rows(query.shape[2], rows, query.device)
    with torch.autocast(query.device.type, enabled=False):
        logits = _compute_logits(call, query[:, :, picked], key, picked)
        visible, counts = find_visible(call, sequences, picked, key.shape[2])
        visible = visible.expand(logits.shape)
        hidden = logits.masked_fill(~visible, -torch.inf)
        return _summarise(call, hidden, visible, counts, picked)


def pick_rows(length: int, rows: int | Sequence[int], device: torch.device) -> Int[Tensor, " rows"]:
    """Return the positions to measure: evenly spaced ones with the last, all, or those given."""
    if not isinstance(rows, int):
        return torch.tensor([row for row in rows if row < length], dtype=torch.long, device=device)
    count = min(rows, length)
    return (torch.arange(1, count + 1, device=device) * length).div(
        count, rounding_mode="floor"
    ) - 1


def _compute_logits(
    call: Call,
    query: Float[Tensor, "batch heads row dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    picked: Int[Tensor, " rows"],
) -> Float[Tensor, "batch heads row key"]:
    dtype = torch.promote_types(query.dtype, torch.float32)
    grouped = query.to(dtype).unflatten(1, (key.shape[1], -1))
    scale = _array.logit_scale(call.options.get("scaling"), query.shape[-1])
    logits = torch.einsum("bgrqd,bgkd->bgrqk", grouped, key.to(dtype)).flatten(1, 2) * scale
    softcap = call.options.get("softcap")
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    bias = call.options.get("position_bias")
    if bias is not None:
        logits = logits + bias[: len(query), :, picked, : key.shape[2]]
    if isinstance(call.mask, Tensor) and call.mask.ndim == 4 and call.mask.dtype != torch.bool:
        logits = logits + call.mask[: len(query), :, picked, : key.shape[2]]
    return logits


def find_visible(
    call: Call, sequences: int, picked: Int[Tensor, " rows"], keys: int
) -> tuple[Bool[Tensor, "#batch #heads row key"], Bool[Tensor, "#batch row"]]:
    """Return which keys the rows see, and which rows count: those that are not padding.

    Args:
        call: The call.
        sequences: The number of sequences of the batch.
        picked: The positions of the rows.
        keys: The number of keys.

    Raises:
        UserError: The mask is of a kind that cannot be read.
    """
    mask, device = call.mask, call.query.device
    mask = mask.matrix() if isinstance(mask, WindowMask) else mask
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim not in (2, 4)):
        raise UserError(
            f"attn_implementation={call.implementation!r} passes a mask of type "
            f"{type(mask).__name__}, which cannot be read: statistics need sdpa, flash or eager"
        )
    if mask is not None and mask.ndim == 4:
        whole = mask[:sequences, :, :, :keys]
        if whole.dtype != torch.bool:
            whole = whole > _array.hiding_bias(torch.finfo(whole.dtype).min)
        visible = whole[:, :, picked]
        if whole.shape[2] == keys:  # a query that does not see its own key is padding
            real = whole.diagonal(dim1=2, dim2=3).any(1)[:, picked]
        else:
            real = visible.any(-1).any(1)
        return visible, real
    visible = _positions_visible(call, picked, keys, device)
    if mask is None:
        return visible, torch.ones((1, len(picked)), dtype=torch.bool, device=device)
    padding = mask[:sequences, :keys].bool()
    real = (
        padding[:, picked]
        if call.query.shape[2] == keys
        else padding[:, -1:].expand(-1, len(picked))
    )
    return visible & padding[:, None, None], real


def _positions_visible(
    call: Call, picked: Int[Tensor, " rows"], keys: int, device: torch.device
) -> Bool[Tensor, "1 1 row key"]:
    """Return which keys the rows see by position: causality, window and packed sequences."""
    place, queries = torch.arange(keys, device=device), call.query.shape[2]
    visible = torch.ones((len(picked), keys), dtype=torch.bool, device=device)
    if is_causal(call.module, call.options) and queries > 1:
        visible &= place <= picked[:, None]
        window = call.options.get("sliding_window")
        if window is not None:
            visible &= picked[:, None] - place < window
    segment = _find_segments(call) if queries == keys else None
    if segment is not None:
        visible &= segment[picked][:, None] == segment
    return visible[None, None]


def _find_segments(call: Call) -> Int[Tensor, " key"] | None:
    """Return the number of each token's sequence, where flash attention packs several in one."""
    if not call.flash or call.mask is not None or call.query.shape[0] != 1:
        return None
    starts, positions = call.options.get("cu_seq_lens_q"), call.options.get("position_ids")
    if starts is not None:
        place = torch.arange(call.query.shape[2], device=starts.device)
        return torch.bucketize(place, starts, right=True)
    return None if positions is None else (positions[-1] == 0).cumsum(-1)


def _summarise(
    call: Call,
    logits: Float[Tensor, "batch heads row key"],
    visible: Bool[Tensor, "batch heads row key"],
    real: Bool[Tensor, "#batch row"],
    picked: Int[Tensor, " rows"],
) -> Float[Tensor, "heads statistics"]:
    """Return sums over the rows that count, their number, and the largest logit."""
    weights = _compute_weights(call, logits, visible)
    surprise = torch.where(weights > 0, -weights.log(), 0.0)
    entropy = (weights * surprise).sum(-1)
    counts = real[:, None] & visible.any(-1)
    values = {
        "entropy": entropy,
        "varentropy": (weights * (surprise - entropy[..., None]) ** 2).sum(-1),
        "max_weight": weights.amax(-1),
        "first_share": _first_share(call, weights, visible, picked),
    }
    sums = [torch.where(counts, values[name], 0.0).sum((0, 2)) for name in MEANS]
    largest = logits.amax(-1).masked_fill(~counts, -torch.inf).amax((0, 2))
    return torch.stack([*sums, counts.sum((0, 2)).to(logits.dtype), largest], -1)


def _first_share(
    call: Call,
    weights: Float[Tensor, "batch heads row key"],
    visible: Bool[Tensor, "batch heads row key"],
    picked: Int[Tensor, " rows"],
) -> Float[Tensor, "batch heads row"]:
    """Return the weight of the first token of each row's sequence; 0 if no window reaches it."""
    starts, window = _find_starts(call, len(visible)), call.options.get("sliding_window")
    if starts is not None:
        visible = visible & starts[:, None, None]
    first = visible.to(torch.int8).argmax(-1)
    share = weights.gather(-1, first[..., None])[..., 0]
    if starts is not None:
        return torch.where(visible.any(-1), share, 0.0)
    # With a cache: the first key that a row sees, unless its window is full.
    return share if window is None else torch.where(visible.sum(-1) >= window, 0.0, share)


def _find_starts(call: Call, sequences: int) -> Bool[Tensor, "#batch key"] | None:
    """Return which tokens begin a sequence, after padding and in packed sequences too.

    Such a token is the first, or does not see the token before. None with a cache.
    """
    mask, keys = call.mask, call.key.shape[2]
    if call.query.shape[2] != keys:
        return None
    mask = mask.matrix() if isinstance(mask, WindowMask) else mask
    before = torch.ones((1, keys - 1), dtype=torch.bool, device=call.query.device)
    if mask is not None and mask.ndim == 4:
        below = mask[:sequences, :, :, :keys].diagonal(offset=-1, dim1=2, dim2=3)
        if below.dtype != torch.bool:
            below = below > _array.hiding_bias(torch.finfo(below.dtype).min)
        before = below.any(1)
    elif mask is not None:
        before = mask[:sequences, : keys - 1].bool()
    segment = _find_segments(call)
    if segment is not None:
        before = before & (segment[1:] == segment[:-1])
    return torch.cat([torch.ones_like(before[:, :1]), ~before], 1)


def _compute_weights(
    call: Call,
    logits: Float[Tensor, "batch heads row key"],
    visible: Bool[Tensor, "batch heads row key"],
) -> Float[Tensor, "batch heads row key"]:
    """Return weights that sum to 1; zeros for a row that sees nothing."""
    head = getattr(call.module, SUBMODULE, None)
    if isinstance(head, HeadNormaliser):
        groups = (call.key.shape[1], -1)
        finite = logits.masked_fill(~visible, 0.0).unflatten(1, groups)
        weights = head.weights(finite, where=visible.unflatten(1, groups)).flatten(1, 2).abs()
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return logits.softmax(-1).nan_to_num(0.0)
