"""Logits made ready for sums over one axis: which items count, and how far each lies below its
row's top.

This is where the awkward rows are settled, once for every function above:

- an item counts when `where` allows it and its logit is not -inf (an additive mask writes -inf);
- a row without items has no mass: its sums are zero and nothing is divided by them;
- +inf takes all the mass of its row, shared among the +inf items;
- a NaN that counts spoils its own row, a NaN that is masked spoils nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from sharpmax import _array
from sharpmax._array import Array

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Rows(NamedTuple):
    """Logits as offsets below their row's maximum; sums run over `axis` and keep it with length
    one.
    """

    xp: Any
    axis: int
    offset: Float[Array, "*rows items"]
    """logit - maximum, at most 0; exactly 0 where an item carries no mass, so products stay finite.
    """
    carries: Bool[Array, "*rows items"]
    """Items that carry mass: visible, and +inf if the row has a +inf."""
    visible: Bool[Array, "*rows items"]
    """Items that count."""
    values: Float[Array, "*rows items"]
    maximum: Float[Array, "*rows 1"]
    """-inf for a row without items."""

    def sum(self, array: Array) -> Float[Array, "*rows 1"]:
        return self.xp.sum(array, axis=self.axis, keepdims=True)

    def exponentials(self, scale: Array | float) -> Float[Array, "*rows items"]:
        """exp(scale * (logit - maximum)), zero where an item carries no mass."""
        return self.xp.where(self.carries, self.xp.exp(self.offset * scale), 0.0)

    def squeeze(self, kept: Float[Array, "*rows 1"]) -> Float[Array, "*rows"]:
        return self.xp.squeeze(kept, axis=self.axis)

    def expand(self, reduced: Float[Array, "*rows"]) -> Float[Array, "*rows 1"]:
        return self.xp.expand_dims(reduced, axis=self.axis)

    def items(self) -> Array:
        """How many items each row has, as an integer [*rows 1]."""
        return self.sum(self.xp.astype(self.visible, self.xp.int32))


def prepare(logits: Array, where: Array | None, axis: int) -> Rows:
    """Check the arguments and find what each row has. [*rows items], [*rows items] -> Rows"""
    xp = _array.namespace(logits=logits, where=where)
    values = xp.astype(logits, _array.statistics_dtype("logits", logits, xp), copy=False)
    axis = _array.negative_axis(axis, logits)
    visible = values != -math.inf
    if where is not None:
        _check_mask(where, logits, axis)
        # The mask may repeat rows: one row of logits under several masks.
        values, visible = xp.broadcast_arrays(values, visible & where)
    maximum = _maximum(values, visible, axis, xp)
    overflowing = maximum == math.inf
    carries = visible & ((values == math.inf) | ~overflowing)
    # The shift is a constant of the graph: softmax and entropy do not depend on it, so leaving it
    # out of the gradient is exact, and ties at the top get their true gradient.
    shift = _array.stop_gradient(xp.where(xp.abs(maximum) == math.inf, 0.0, maximum))
    offset = xp.where(carries & ~overflowing, values - shift, 0.0)
    return Rows(xp, axis, offset, carries, visible, values, maximum)


def inverse_temperature(temperature: Array, logits: Array, axis: int) -> Array | float:
    """1 / temperature: a positive number, or an array with one entry a row. [*rows 1] -> [*rows 1]

    Array entries cannot be read while a function is traced; one that is not positive gives NaN in
    its row.
    """
    if _array.is_number(temperature):
        inverse = 1.0 / _array.positive_number("temperature", temperature)
        if inverse == math.inf:
            raise ValueError(f"temperature {temperature!r} is too small: its inverse is not finite")
        return inverse
    xp = _array.namespace(logits=logits, temperature=temperature)
    axis = _array.negative_axis(axis, logits)
    if temperature.ndim >= -axis and temperature.shape[axis] != 1:
        raise ValueError(
            f"temperature of shape {tuple(temperature.shape)} must have length 1 on the item axis "
            f"({axis}) of logits {tuple(logits.shape)}: one temperature a row"
        )
    dtype = _array.statistics_dtype("logits", logits, xp)
    _array.statistics_dtype("temperature", temperature, xp)
    wide = xp.astype(temperature, dtype, copy=False)
    return 1.0 / xp.where(wide > 0, wide, math.nan)


def _check_mask(where: Array, logits: Array, axis: int) -> None:
    if _array.dtype_name(where) not in ("bool", "bool_"):
        raise TypeError(
            f"where must be boolean (True = the item takes part), got {_array.dtype_name(where)}; "
            "an additive mask is added to the logits instead"
        )
    ours, theirs = tuple(logits.shape), tuple(where.shape)
    pairs = zip(reversed(ours), reversed(theirs), strict=False)
    fits = all(mine == its or 1 in (mine, its) for mine, its in pairs)
    # A mask may repeat rows but not invent items: along the item axis it fits exactly or applies to
    # all.
    if not fits or (len(theirs) >= -axis and theirs[axis] not in (1, ours[axis])):
        raise ValueError(
            f"where of shape {theirs} does not fit logits of shape {ours} on item axis {axis}"
        )


def _maximum(values: Array, visible: Array, axis: int, xp: Any) -> Array:
    if values.shape[axis] == 0:
        # No library takes the maximum of nothing; the sum of nothing is 0 with the right shape and
        # device.
        return xp.sum(values, axis=axis, keepdims=True) - math.inf
    return xp.max(xp.where(visible, values, -math.inf), axis=axis, keepdims=True)
