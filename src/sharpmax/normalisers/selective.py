"""Softmax in which earlier tokens may ask later ones to forget an item."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.normalisers._base import Normaliser, finish, visible
from sharpmax.normalisers._order import before, positions
from sharpmax.normalisers._scaling import softmax_of
from sharpmax.ops._rows import NOTHING, Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Selective(Normaliser):
    """Let a token decide that an earlier one is no longer needed, by all that come after.

        p_q = softmax over items i of z_qi - F_qi,    F_qi = sum over k < q of S_ki
        S_ki = max(s_ki, 0) for items i before k,  0 for the first item and for k itself

    Needs the logits of all queries over their own items, [..., n, n]: F sums over earlier queries.
    s is `selection`, logits of the same queries and items; arXiv 2410.02703 takes those of one head
    for all heads of a layer (give it with an axis of length 1 for the heads). Without it each set
    of logits selects for itself. The causal mask is the caller's, in `where`, as always.
    `query_axis` is the axis of the queries, `axis` that of the items.
    """

    query_axis: int = -2
    order_dependent: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = False
    fused: ClassVar[str | None] = "additive bias, after a pass that sums the selection"
    needs: ClassVar[str | None] = "the logits of all queries over their own items, [..., n, n]"

    def __call__(
        self,
        logits: Float[Array, "*batch queries items"],
        *,
        selection: Float[Array, "*batch queries items"] | None = None,
        where: Bool[Array, "*batch queries items"] | None = None,
        axis: int = -1,
    ) -> Float[Array, "*batch queries items"]:
        rows = prepare(logits, where, axis)
        queries = _query_axis(self.query_axis, rows.values, rows.axis)
        chosen = rows if selection is None else prepare(selection, where, axis)
        if selection is not None:
            _array.namespace(logits=logits, selection=selection)
            _query_axis(self.query_axis, chosen.values, chosen.axis)
        if rows.values.shape[rows.axis] == 0:
            return rows.xp.astype(rows.values, logits.dtype, copy=False)
        forgotten = _forgotten(chosen, queries)
        masked = rows.xp.where(visible(rows), rows.values - forgotten, -math.inf)
        return finish(softmax_of(prepare(masked, None, axis)), rows, logits)


def _forgotten(rows: Rows, queries: int) -> Float[Array, "*batch queries items"]:
    """F above: how much earlier queries have asked for each item to be forgotten."""
    xp, items = rows.xp, rows.axis
    seen = visible(rows)
    # The first item that any query can see: the beginning of the text, also after padding.
    present = xp.any(seen, axis=queries, keepdims=True)
    first = present & (before(xp.astype(present, xp.int32), items, xp) == 0)
    earlier = positions(rows.values, items, xp) < positions(rows.values, queries, xp)
    asked = xp.where(seen & earlier & ~first & (rows.values > 0), rows.values, 0.0)
    # +inf - +inf would be NaN; 1e20 below the others is forgotten as well.
    return before(_array.clamp(asked, 0.0, -NOTHING, xp), queries, xp)


def _query_axis(axis: int, logits: Array, items: int) -> int:
    """The axis of the queries, counted from the end; there must be as many as items."""
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
