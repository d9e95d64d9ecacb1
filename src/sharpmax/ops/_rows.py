"""Logits prepared for sums over one axis: the distance of each item below its row's maximum.

Special rows are settled here, once for every function that builds on it:

- an item counts if `where` allows it and its logit is not -inf (additive masks write -inf);
- a row without items has no mass: its sums are 0, and nothing is divided by them;
- +inf takes all the mass of its row, shared equally among the +inf items;
- a NaN that counts makes its whole row NaN; a masked NaN changes nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from sharpmax import _array
from sharpmax._array import Array

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

NOTHING = -1e20
"""The offset of an item without mass. Unlike -inf it may be multiplied by a weight of 0. A logit
further than this below its row's maximum has no mass either, except at a temperature that makes
such a distance small, see `Rows.at_high_temperature`."""

VANISHES = 1e-16
"""From this scale on, exp(scale * NOTHING) underflows to 0 in every type."""


class Rows(NamedTuple):
    """Hold the logits of every row as offsets below the row's maximum.

    This is what a `RowNormaliser` gets. Everything has the shape of the logits; what is one number
    per row has length 1 on the item axis.
    """

    xp: Any
    """The array library of the logits, as an array API namespace."""
    axis: int
    """The item axis, counted from the end."""
    values: Float[Array, "..."]
    """The logits in the type of the statistics; -inf where an item does not count."""
    maximum: Float[Array, "..."]
    """The largest logit per row; -inf for a row without items."""
    offset: Float[Array, "..."]
    """logit - maximum: 0 at the top up to rounding, and -1e20 for an item that does not count."""

    def sum(self, array: Array) -> Array:
        """Sum over the items of each row.

        Args:
            array: one entry per item.

        Returns:
            One entry per row, with length 1 on the item axis.
        """
        return self.xp.sum(array, axis=self.axis, keepdims=True)

    def exponentials(self, scale: Array | float) -> Float[Array, "..."]:
        """Compute exp(scale * (logit - maximum)).

        Args:
            scale: the inverse temperature, a number or an array with one entry per row.

        Returns:
            One entry per item, 0 for items that do not count.
        """
        if isinstance(scale, float) and scale == 1.0:
            return _array.exp(self.offset, self.xp)
        exponentials = _array.exp(self.offset * scale, self.xp)
        if isinstance(scale, float) and scale >= VANISHES:
            return exponentials
        # At an extreme temperature, or one that cannot be read, a masked item must stay at 0.
        return self.xp.where(self._has_no_mass(), 0.0, exponentials)

    def at_high_temperature(self, scale: Array | float) -> Rows:
        """Keep the distance of logits that are further than 1e20 below their row's maximum.

        Args:
            scale: the inverse temperature, a number or an array with one entry per row.

        Returns:
            The same rows, unless the temperature may be so high that such a distance matters.
        """
        if isinstance(scale, float) and scale >= VANISHES:
            return self
        xp = self.xp
        infinite = float(xp.finfo(self.values.dtype).max) / 2
        top = _array.clamp(_array.stop_gradient(self.maximum), -infinite, infinite, xp)
        far = _array.bounded_offset(self.values - top, -infinite, xp)
        return self._replace(offset=xp.where(self._has_no_mass(), NOTHING, far))

    def _has_no_mass(self) -> Array:
        """Say which items are hidden, or finite in a row whose maximum is +inf."""
        hidden = self.values == -math.inf
        return hidden | ((self.maximum == math.inf) & (self.values < math.inf))

    def items(self) -> Int[Array, "..."]:
        """Count the items of each row.

        Returns:
            One entry per row, with length 1 on the item axis.
        """
        return self.sum(self.xp.astype(self.values != -math.inf, self.xp.int32))

    def squeeze(self, kept: Array) -> Array:
        """Drop the item axis of length 1.

        Args:
            kept: one entry per row, with length 1 on the item axis.

        Returns:
            The same without the item axis.
        """
        return self.xp.squeeze(kept, axis=self.axis)

    def expand(self, reduced: Array) -> Array:
        """Insert an item axis of length 1.

        Args:
            reduced: one entry per row, without the item axis.

        Returns:
            The same with length 1 on the item axis.
        """
        return self.xp.expand_dims(reduced, axis=self.axis)

    def nonzero(self, total: Float[Array, "..."]) -> Float[Array, "..."]:
        """Make a sum of exponentials safe to divide by.

        Args:
            total: a sum per row, 0 for a row without items.

        Returns:
            The same sums, with 1 instead of 0.
        """
        return self.xp.where(total == 0, 1.0, total)


def prepare(logits: Float[Array, "..."], where: Bool[Array, "..."] | None, axis: int) -> Rows:
    """Check the arguments and compute each row's maximum and offsets."""
    xp = _array.namespace(logits=logits, where=where)
    values = xp.astype(logits, _array.statistics_dtype("logits", logits, xp), copy=False)
    axis = _array.negative_axis(axis, logits)
    if where is not None:
        _check_mask(where, logits, axis)
        values = xp.where(where, values, -math.inf)
    if values.shape[axis] == 0:
        # No library has a maximum of nothing. A sum of nothing has the right shape and device.
        maximum = xp.sum(values, axis=axis, keepdims=True) - math.inf
    else:
        maximum = xp.max(values, axis=axis, keepdims=True)
    # Half of the largest number stands for an infinite maximum: finite logits are far below it.
    infinite = float(xp.finfo(values.dtype).max) / 2
    finite = xp.where(maximum == -math.inf, 0.0, xp.where(maximum == math.inf, infinite, maximum))
    # Softmax and entropy do not depend on the shift, so keeping it out of the gradient is exact,
    # and ties at the top get their true gradient.
    offset = _array.bounded_offset(values - _array.stop_gradient(finite), NOTHING, xp)
    return Rows(xp, axis, values, maximum, offset)


def inverse_temperature(temperature: Array, logits: Array, axis: int) -> Array | float:
    """Return 1 / temperature, for a positive number or an array with one entry per row.

    The entries of an array cannot be read while a function is traced, so an entry that is not
    positive makes its row NaN instead of raising.
    """
    if _array.is_number(temperature):
        inverse = 1.0 / _array.positive_number("temperature", temperature)
        if inverse == math.inf:
            raise ValueError(f"temperature {temperature!r} is too small: its inverse is not finite")
        return inverse
    wide = per_row("temperature", temperature, logits, axis)
    xp = _array.namespace(logits=logits)
    return 1.0 / xp.where(wide > 0, wide, math.nan)


def per_row(name: str, value: Array, logits: Array, axis: int) -> Float[Array, "..."]:
    """Check an option given as an array with one entry per row; convert it to the statistics' type.

    Raises:
        TypeError: if it comes from another library than the logits, or is not floating.
        ValueError: if its shape does not fit the rows.
    """
    xp = _array.namespace(**{"logits": logits, name: value})
    axis = _array.negative_axis(axis, logits)
    ours, theirs = tuple(logits.shape), tuple(value.shape)
    if not _broadcasts(ours, theirs) or (len(theirs) >= -axis and theirs[axis] != 1):
        raise ValueError(
            f"{name} of shape {theirs} must have length 1 on the item axis ({axis}) of logits "
            f"{ours} and fit its other axes: one {name} per row"
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
    # A mask may add rows but no items: it has one entry per item, or one for all of them.
    adds_items = len(theirs) >= -axis and theirs[axis] not in (1, ours[axis])
    if adds_items or not _broadcasts(ours, theirs):
        raise ValueError(
            f"where of shape {theirs} does not fit logits of shape {ours} on item axis {axis}"
        )


def _broadcasts(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(other), strict=False)
    return all(size == its or 1 in (size, its) for size, its in pairs)
