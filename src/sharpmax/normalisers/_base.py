"""What every normaliser is: a frozen dataclass with one verb, and traits that say what to expect.

A normaliser turns logits into attention weights. Two kinds of state are kept apart: its fields,
given at construction, and the logits, given at the call. A field that is learned takes a number or
an array of the logits' library, so that a training loop can put its own array there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.ops._rows import Rows, per_row, prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Normaliser:
    """normaliser(logits, *, where=None, axis=-1) -> weights; the traits are those of softmax."""

    sums_to_one: ClassVar[bool] = True
    """The weights of every row with items sum to 1."""
    sparse: ClassVar[bool] = False
    """A weight can be exactly 0 although its item takes part."""
    order_dependent: ClassVar[bool] = False
    """Moving the items along their axis changes more than the order of the weights."""
    shift_invariant: ClassVar[bool] = True
    """Adding a number to all logits of a row changes nothing."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """Fields that are learned; those of the default instance are initial values."""
    fused: ClassVar[str | None] = None
    """How a fused attention kernel could serve it; None if it needs a kernel of its own."""
    needs: ClassVar[str | None] = None
    """What it needs besides the logits of one row; None if nothing."""

    def __call__(
        self,
        logits: Float[Array, "*rows items"],
        *,
        where: Bool[Array, "*rows items"] | None = None,
        axis: int = -1,
    ) -> Float[Array, "*rows items"]:
        raise NotImplementedError(f"{type(self).__name__} must say how it turns logits to weights")


class RowNormaliser(Normaliser):
    """A normaliser of one row at a time: a subclass writes `weights`, the rest is done here."""

    def __call__(
        self,
        logits: Float[Array, "*rows items"],
        *,
        where: Bool[Array, "*rows items"] | None = None,
        axis: int = -1,
    ) -> Float[Array, "*rows items"]:
        """Weights of the library, type and gradient graph of `logits`.

        `where` is True for the items that take part: masking equals leaving the item out. A row
        with no items gives zeros; a NaN that takes part spoils its whole row and no other.
        """
        rows = prepare(logits, where, axis)
        if rows.values.shape[rows.axis] == 0:
            return rows.xp.astype(rows.values, logits.dtype, copy=False)
        return finish(self.weights(rows), rows, logits)

    def weights(self, rows: Rows) -> Float[Array, "*rows items"]:
        """The weights in the type of the statistics; those of masked items are not looked at."""
        raise NotImplementedError(f"{type(self).__name__} must define weights(rows)")


def finish(weights: Array, rows: Rows, logits: Array) -> Float[Array, "*rows items"]:
    """0 for items that do not count, NaN for all of a row with a NaN, and the logits' own type."""
    xp = rows.xp
    clean = xp.where(visible(rows), weights, 0.0)
    spoiled = xp.where(xp.isnan(rows.maximum), math.nan, clean)
    return xp.astype(spoiled, logits.dtype, copy=False)


def visible(rows: Rows) -> Bool[Array, "*rows items"]:
    """True for the items that count."""
    return rows.values != -math.inf


def log_items(rows: Rows) -> Float[Array, "*rows 1"]:
    """log n, n being the number of items that the row can see; 0 for a row without items."""
    count = rows.xp.astype(rows.items(), rows.values.dtype)
    return rows.xp.log(rows.xp.where(count > 1, count, 1.0))


def finite_values(rows: Rows) -> Float[Array, "*rows items"]:
    """The logits themselves, with 0 where an item does not count."""
    return rows.xp.where(visible(rows), rows.values, 0.0)


def parameter(name: str, value: Any, rows: Rows) -> Float[Array, "*rows 1"] | float:
    """A field as a number, or as an array with one entry a row that carries its gradient."""
    if _array.is_number(value):
        return float(value)
    return per_row(name, value, rows.values, rows.axis)


def check_number(name: str, value: Any, low: float, expected: str) -> None:
    """Refuse a number below `low` or not finite; an array cannot be read while traced."""
    if _array.is_number(value) and not low <= value < math.inf:
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def check_whole(name: str, value: Any, expected: str) -> None:
    """Refuse what is not a whole number from 1 up."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be {expected}, a whole number from 1 up, got {value!r}")
