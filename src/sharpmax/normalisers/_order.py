"""What depends on the order of the items along their axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharpmax._array import Array

if TYPE_CHECKING:
    from jaxtyping import Int


def before(array: Array, axis: int, xp: Any) -> Array:
    """The sum of all earlier entries along the axis, the entry itself left out."""
    summed = xp.cumulative_sum(array, axis=axis, dtype=array.dtype, include_initial=True)
    # One entry more than there are items: the sum of all, which is before nothing.
    index = [slice(None)] * array.ndim
    index[axis] = slice(0, array.shape[axis])
    return summed[tuple(index)]


def after(array: Array, axis: int, xp: Any) -> Array:
    """The sum of all later entries along the axis, the entry itself left out."""
    return xp.flip(before(xp.flip(array, axis=axis), axis, xp), axis=axis)


def positions(array: Array, axis: int, xp: Any) -> Int[Array, "..."]:
    """0, 1, 2, ... along the axis, shaped to go with the array."""
    # Counted with the array's own device and library, which `arange` would have to be told.
    return before(xp.ones_like(array, dtype=xp.int32), axis, xp)
