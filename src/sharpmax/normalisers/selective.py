"""Softmax in which earlier tokens may tell later ones to forget an item."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import (
    Normaliser,
    finish,
    positions,
    softmax_of,
    sum_before,
    visible_items,
)
from sharpmax.ops._rows import NOTHING, Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Selective(Normaliser):
    """Let a token decide that an earlier one is no longer needed by all that come after.

        p_q = softmax over items i of z_qi - F_qi,    F_qi = sum over k < q of S_ki
        S_ki = max(s_ki, 0) for items i before k,  0 for the first item and for k itself

    F sums over earlier queries, so the call takes the logits of all queries over their own items,
    [..., n, n]. s is the `selection` of the call. arXiv 2410.02703 takes the logits of one head for
    all heads of a layer. The causal mask is the caller's, in `where`, as always.

    Args:
        query_axis: the axis of the queries; the `axis` of the call is that of the items.
    """

    query_axis: int = -2
    order_dependent: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False
    fused: ClassVar[str | None] = "additive bias, after a pass that sums the selection"
    needs: ClassVar[str | None] = "the logits of all queries over their own items, [..., n, n]"

    def __call__(
        self,
        logits: Float[Array, "..."],
        *,
        selection: Float[Array, "..."] | None = None,
        where: Bool[Array, "..."] | None = None,
        axis: int = -1,
    ) -> Float[Array, "..."]:
        """Turn the logits of all queries over their own items into weights.

        Args:
            logits: floating array with as many queries as items.
            selection: what each query asks to be forgotten, logits of the same queries and items;
                by default `logits` themselves. Its other axes broadcast: length 1 for the heads
                lets one head select for all.
            where: boolean mask, True for the items that take part.
            axis: the axis of the items.

        Returns:
            The weights, with the library, device, type and gradient graph of `logits`.

        Raises:
            TypeError: if an argument has the wrong kind of type, or comes from another library.
            ValueError: if a shape does not fit, or there are not as many queries as items.
        """
        rows = prepare(logits, where, axis)
        queries = _query_axis(self.query_axis, rows.values, rows.axis)
        chosen = rows if selection is None else prepare(selection, where, axis)
        if selection is not None:
            _array.namespace(logits=logits, selection=selection)
            _query_axis(self.query_axis, chosen.values, chosen.axis)
        if rows.values.shape[rows.axis] == 0:
            return rows.xp.astype(rows.values, logits.dtype, copy=False)
        forgotten = _sum_selection(chosen, queries)
        masked = rows.xp.where(visible_items(rows), rows.values - forgotten, -math.inf)
        return finish(softmax_of(prepare(masked, None, axis)), rows, logits)


def _sum_selection(rows: Rows, queries: int) -> Float[Array, "..."]:
    """Compute F: how much earlier queries have asked each item to be forgotten."""
    xp, items = rows.xp, rows.axis
    seen = visible_items(rows)
    # The first item that any query can see is the beginning of the text, also after padding.
    present = xp.any(seen, axis=queries, keepdims=True)
    first = present & (sum_before(xp.astype(present, xp.int32), items, xp) == 0)
    earlier = positions(rows.values, items, xp) < positions(rows.values, queries, xp)
    asked = xp.where(seen & earlier & ~first & (rows.values > 0), rows.values, 0.0)
    # Limited to 1e20, which is as good as forgotten: +inf - +inf would be NaN.
    return sum_before(_array.clamp(asked, 0.0, -NOTHING, xp), queries, xp)


def _query_axis(axis: int, logits: Array, items: int) -> int:
    """Return the axis of the queries, counted from the end; there must be as many as items."""
    shape = tuple(logits.shape)
    if len(shape) < 2:
        raise ValueError(
            f"selective attention needs logits [..., queries, items], got shape {shape}: earlier "
            "queries decide what later ones forget"
        )
    queries = _array.negative_axis(axis, logits)
    if queries == items or shape[queries] != shape[items]:
        raise ValueError(
            "selective attention needs as many queries as items, each query being an item: got "
            f"shape {shape} with query_axis={queries} and axis={items}"
        )
    return queries
