"""The base classes of normalisers, and the helpers that they share.

A normaliser turns logits into attention weights. It is a frozen dataclass: its fields are given at
construction, the logits at the call. A learned field takes a number or an array of the logits'
library, so that a training loop can put its own parameter there. Traits, which are class
attributes, tell how a normaliser differs from softmax.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.ops._rows import NOTHING, Rows, per_row, prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Normaliser:
    """Turn logits into weights: the base class, with the traits of softmax."""

    sums_to_one: ClassVar[bool] = True
    """The weights of every row with items sum to 1."""
    sparse: ClassVar[bool] = False
    """A weight can be exactly 0 although its item takes part."""
    order_dependent: ClassVar[bool] = False
    """Permuting the items does more than permute the weights."""
    shift_invariant: ClassVar[bool] = True
    """Adding a number to all logits of a row changes nothing."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are learned. The defaults are initial values."""
    fused: ClassVar[str | None] = None
    """How a fused attention kernel could compute it; None if it needs a kernel of its own."""
    needs: ClassVar[str | None] = None
    """What it needs besides the logits of one row; None if nothing."""

    def __call__(
        self,
        logits: Float[Array, "..."],
        *,
        where: Bool[Array, "..."] | None = None,
        axis: int = -1,
    ) -> Float[Array, "..."]:
        """Turn logits into weights.

        Args:
            logits: NumPy, PyTorch or JAX array of a floating type.
            where: boolean mask, True for the items that take part. Masking equals removing.
            axis: the axis of the items.

        Returns:
            The weights, with the library, device, type and gradient graph of `logits`. A row
            without items gives zeros. A NaN that takes part makes its whole row NaN, and no other.

        Raises:
            TypeError: if an argument has the wrong kind of type, or comes from another library.
            ValueError: if a shape does not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(logits, ...)")


class RowNormaliser(Normaliser):
    """Turn logits into weights one row at a time: a subclass writes `weights`, nothing else.

    Masks, axes, types, empty rows and NaN are handled before and after `weights`.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Square(RowNormaliser):
        ...     def weights(self, rows):
        ...         squares = finite_values(rows) ** 2
        ...         return squares / rows.nonzero(rows.sum(squares))
    """

    def __call__(
        self,
        logits: Float[Array, "..."],
        *,
        where: Bool[Array, "..."] | None = None,
        axis: int = -1,
    ) -> Float[Array, "..."]:
        rows = prepare(logits, where, axis)
        if rows.values.shape[rows.axis] == 0:
            return rows.xp.astype(rows.values, logits.dtype, copy=False)
        return finish(self.weights(rows), rows, logits)

    def weights(self, rows: Rows) -> Float[Array, "..."]:
        """Compute the weights of prepared rows.

        Args:
            rows: the logits, their maxima and their offsets below them.

        Returns:
            One weight per item, in the type of `rows.values`. What stands at masked items is
            replaced by 0, but its gradient must be finite.
        """
        raise NotImplementedError(f"{type(self).__name__} must define weights(rows)")


def finite_values(rows: Rows) -> Float[Array, "..."]:
    """Return the logits with 0 instead of -inf where an item does not count.

    A formula that is NaN at -inf would spoil the gradient of a masked item even if a `where` drops
    its weight afterwards. Compute from these values instead of `rows.values`.

    Args:
        rows: the rows that a normaliser's `weights` was given.

    Returns:
        One finite value per item (+inf and NaN logits stay as they are).

    Examples:
        >>> squares = finite_values(rows) ** 2
    """
    return rows.xp.where(visible_items(rows), rows.values, 0.0)


def parameter(name: str, value: Any, rows: Rows) -> Float[Array, "..."] | float:
    """Read a learned field: a number as it is, an array checked to have one entry per row.

    Args:
        name: the name of the field, for error messages.
        value: the field, a number or an array of the logits' library with length 1 on the item
            axis.
        rows: the rows that a normaliser's `weights` was given.

    Returns:
        A float, or an array that broadcasts with `rows.values` and carries its gradient.

    Raises:
        TypeError: if an array comes from another library or is not floating.
        ValueError: if an array does not have one entry per row.

    Examples:
        >>> scale = parameter("scale", self.scale, rows)
    """
    if _array.is_number(value):
        return float(value)
    return per_row(name, value, rows.values, rows.axis)


def finish(weights: Array, rows: Rows, logits: Array) -> Float[Array, "..."]:
    """Zero the weights of masked items, make a row with a NaN all NaN, and restore the type."""
    xp = rows.xp
    clean = xp.where(visible_items(rows), weights, 0.0)
    spoiled = xp.where(xp.isnan(rows.maximum), math.nan, clean)
    return xp.astype(spoiled, logits.dtype, copy=False)


def softmax_of(rows: Rows) -> Float[Array, "..."]:
    """Return exp(offset) / sum in the type of the statistics, and zeros for a row without items."""
    exponentials = rows.exponentials(1.0)
    return exponentials / rows.nonzero(rows.sum(exponentials))


def scale_rows(rows: Rows, factor: Float[Array, "..."] | float) -> Rows:
    """Multiply the logits by a factor per row, up to a shift of the row."""
    # By the offset, which is finite: -inf times a factor of 0 would be NaN, also in its gradient.
    product = rows.xp.where(rows.offset <= NOTHING, -math.inf, rows.offset * factor)
    # Prepared again: a learned factor may be negative, and then another item is the largest.
    return prepare(product, None, rows.axis)


def visible_items(rows: Rows) -> Bool[Array, "..."]:
    """Return True for the items that count."""
    return rows.values != -math.inf


def log_items(rows: Rows) -> Float[Array, "..."]:
    """Return log n per row, n being the number of items that the row can see; 0 without items."""
    count = rows.xp.astype(rows.items(), rows.values.dtype)
    return rows.xp.log(rows.xp.where(count > 1, count, 1.0))


def distances(rows: Rows) -> Float[Array, "..."]:
    """Return how far each item is from the last that its row can see, in items that count.

    This is what distance means to a normaliser: the order of the axis is that of the items, and
    masking equals removing. Under a causal mask the last item is the query's own.
    """
    visible = rows.xp.astype(visible_items(rows), rows.values.dtype)
    return sum_after(visible, rows.axis, rows.xp)


def prepare_pair(
    normaliser: Normaliser,
    logits: Float[Array, "..."],
    second: Float[Array, "..."] | None,
    where: Bool[Array, "..."] | None,
    axis: int,
) -> tuple[Rows, Rows]:
    """Prepare the two sets of logits of a normaliser that subtracts one map from another.

    Raises:
        TypeError: if there is no second set, or it comes from another library.
        ValueError: if its shape is another one.
    """
    if second is None:
        name = type(normaliser).__name__
        raise TypeError(
            f"{name} subtracts a second map and got one set of logits: expected two, "
            f"{name}()(logits, second)"
        )
    _array.namespace(logits=logits, second=second)
    if tuple(second.shape) != tuple(logits.shape):
        raise ValueError(
            f"second of shape {tuple(second.shape)} must have the shape of logits, "
            f"{tuple(logits.shape)}"
        )
    return prepare(logits, where, axis), prepare(second, where, axis)


def sum_before(array: Array, axis: int, xp: Any) -> Array:
    """Sum all earlier entries along the axis, without the entry itself."""
    summed = xp.cumulative_sum(array, axis=axis, dtype=array.dtype, include_initial=True)
    # The last of its n + 1 entries is the sum of all.
    index = [slice(None)] * array.ndim
    index[axis] = slice(0, array.shape[axis])
    return summed[tuple(index)]


def sum_after(array: Array, axis: int, xp: Any) -> Array:
    """Sum all later entries along the axis, without the entry itself."""
    return xp.flip(sum_before(xp.flip(array, axis=axis), axis, xp), axis=axis)


def positions(array: Array, axis: int, xp: Any) -> Int[Array, "..."]:
    """Return 0, 1, 2, ... along the axis, in the shape of the array."""
    # Not by `arange`, which would not know the device.
    return sum_before(xp.ones_like(array, dtype=xp.int32), axis, xp)


def check_number(name: str, value: Any, low: float, expected: str) -> None:
    """Refuse a number below `low` or not finite; an array cannot be read while traced."""
    if _array.is_number(value) and not low <= value < math.inf:
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def check_whole(name: str, value: Any, expected: str) -> None:
    """Refuse what is not an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be {expected}, an integer of 1 or more, got {value!r}")
