"""Logits made ready for sums over one axis: how far each item lies below its row's top.

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
    from jaxtyping import Float, Int

NOTHING = -1e20
"""The offset of an item without mass: unlike -inf it may be multiplied by a weight or a gradient
that is zero. A logit further than this below its row's maximum counts as -inf."""

VANISHES = 1e-16
"""From this scale on, exp(scale * NOTHING) is 0 by itself in every type."""


class Rows(NamedTuple):
    """Logits as offsets below their row's maximum; sums run over `axis`, kept with length 1."""

    xp: Any
    axis: int
    values: Float[Array, "*rows items"]
    """The logits, -inf where an item does not count."""
    maximum: Float[Array, "*rows 1"]
    """-inf for a row without items."""
    offset: Float[Array, "*rows items"]
    """logit - maximum: NOTHING or below for an item without mass, and 0 but for a rounding at the
    top."""

    def sum(self, array: Array) -> Float[Array, "*rows 1"]:
        return self.xp.sum(array, axis=self.axis, keepdims=True)

    def exponentials(self, scale: Array | float) -> Float[Array, "*rows items"]:
        """exp(scale * (logit - maximum))."""
        if isinstance(scale, float) and scale == 1.0:
            return _array.exp(self.offset, self.xp)
        exponentials = _array.exp(self.offset * scale, self.xp)
        if isinstance(scale, float) and scale >= VANISHES:
            return exponentials
        # At an extreme temperature, or one that cannot be read, a masked item must stay at 0.
        return self.xp.where(self.offset <= NOTHING, 0.0, exponentials)

    def items(self) -> Int[Array, "*rows 1"]:
        """How many items each row has."""
        return self.sum(self.xp.astype(self.values != -math.inf, self.xp.int32))

    def squeeze(self, kept: Float[Array, "*rows 1"]) -> Float[Array, "*rows"]:
        return self.xp.squeeze(kept, axis=self.axis)

    def expand(self, reduced: Float[Array, "*rows"]) -> Float[Array, "*rows 1"]:
        return self.xp.expand_dims(reduced, axis=self.axis)

    def nonzero(self, total: Float[Array, "*rows 1"]) -> Float[Array, "*rows 1"]:
        """A sum of exponentials to divide by: 1 where a row without items has 0."""
        return self.xp.where(total == 0, 1.0, total)


def prepare(logits: Array, where: Array | None, axis: int) -> Rows:
    """Check the arguments and find what each row has. [*rows items], [*rows items] -> Rows"""
    xp = _array.namespace(logits=logits, where=where)
    values = xp.astype(logits, _array.statistics_dtype("logits", logits, xp), copy=False)
    axis = _array.negative_axis(axis, logits)
    if where is not None:
        _check_mask(where, logits, axis)
        values = xp.where(where, values, -math.inf)
    if values.shape[axis] == 0:
        # No library takes the maximum of nothing; the sum of nothing is 0, shaped and placed right.
        maximum = xp.sum(values, axis=axis, keepdims=True) - math.inf
    else:
        maximum = xp.max(values, axis=axis, keepdims=True)
    # Below an infinite top, half of the largest number: every finite logit is then far below it.
    infinite = float(xp.finfo(values.dtype).max) / 2
    finite = xp.where(maximum == -math.inf, 0.0, xp.where(maximum == math.inf, infinite, maximum))
    # The shift is a constant of the graph: softmax and entropy do not depend on it, so leaving it
    # out of the gradient is exact, and ties at the top get their true gradient.
    offset = _array.bounded_offset(values - _array.stop_gradient(finite), NOTHING, xp)
    return Rows(xp, axis, values, maximum, offset)


def inverse_temperature(temperature: Array, logits: Array, axis: int) -> Array | float:
    """1 / temperature: of a positive number, or of an array with one entry a row, [*rows 1].

    Array entries cannot be read while a function is traced; one that is not positive gives NaN in
    its row.
    """
    if _array.is_number(temperature):
        inverse = 1.0 / _array.positive_number("temperature", temperature)
        if inverse == math.inf:
            raise ValueError(f"temperature {temperature!r} is too small: its inverse is not finite")
        return inverse
    wide = per_row("temperature", temperature, logits, axis)
    xp = _array.namespace(logits=logits)
    return 1.0 / xp.where(wide > 0, wide, math.nan)


def per_row(name: str, value: Array, logits: Array, axis: int) -> Float[Array, "*rows 1"]:
    """An option given as an array, one entry a row, in the type of the statistics; on the graph."""
    xp = _array.namespace(**{"logits": logits, name: value})
    axis = _array.negative_axis(axis, logits)
    ours, theirs = tuple(logits.shape), tuple(value.shape)
    pairs = zip(reversed(ours), reversed(theirs), strict=False)
    fits = all(mine == its or 1 in (mine, its) for mine, its in pairs)
    if not fits or (len(theirs) >= -axis and theirs[axis] != 1):
        raise ValueError(
            f"{name} of shape {theirs} must have length 1 on the item axis ({axis}) of logits "
            f"{ours} and fit its other axes: one {name} a row"
        )
    dtype = _array.statistics_dtype("logits", logits, xp)
    _array.statistics_dtype(name, value, xp)
    return xp.astype(value, dtype, copy=False)


def _check_mask(where: Array, logits: Array, axis: int) -> None:
    if _array.dtype_name(where) not in ("bool", "bool_"):
        raise TypeError(
            f"where must be boolean (True = the item takes part), got {_array.dtype_name(where)}; "
            "an additive mask is added to the logits instead"
        )
    ours, theirs = tuple(logits.shape), tuple(where.shape)
    pairs = zip(reversed(ours), reversed(theirs), strict=False)
    fits = all(mine == its or 1 in (mine, its) for mine, its in pairs)
    # A mask may repeat rows but not invent items: it has one entry an item, or one for all.
    if not fits or (len(theirs) >= -axis and theirs[axis] not in (1, ours[axis])):
        raise ValueError(
            f"where of shape {theirs} does not fit logits of shape {ours} on item axis {axis}"
        )
