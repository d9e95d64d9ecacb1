"""Softmax statistics of a row that is seen in pieces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class SoftmaxState(NamedTuple):
    """Hold all that can be known about a row's softmax without keeping the row.

    Streaming, chunked, ring and multi-device attention see a row in pieces. Two states merge into
    the state of both pieces together, in any order. Per row the state holds

        m = max_k e_k,   l = sum_k exp(e_k - m),   t = sum_k (e_k - m) exp(e_k - m),
        u = sum_k (e_k - m)^2 exp(e_k - m),

    the smallest logit and the number of items. When a larger maximum m' arrives, with
    d = m - m' and c = exp(d),

        u <- c * (u + 2 d t + d^2 l),    t <- c * (t + d l),    l <- c * l.

    No term cancels another: d and t are at most 0. The sums are kept relative to m: with logits
    near 1,000 the plain sum of e * exp(e) would lose ten times the accuracy. Source:
    arXiv 2410.01104 (entropy while streaming); this is the log-sum-exp merge with two more columns.

    The state is a tuple, so JAX and PyTorch carry it through jit, vmap and scan. The state of no
    items, `SoftmaxState.of(logits[..., :0])`, is neutral in a merge.
    """

    max: Float[Array, "*rows"]
    """The largest logit; -inf without items."""
    min: Float[Array, "*rows"]
    """The smallest logit; +inf without items."""
    count: Int[Array, "*rows"]  # hides tuple.count, which nobody calls on a state
    """The number of items."""
    sum_exp: Float[Array, "*rows"]
    """l above: at least 1 with items, 0 without."""
    sum_offset_exp: Float[Array, "*rows"]
    """t above: at most 0."""
    sum_squared_offset_exp: Float[Array, "*rows"]
    """u above: at least 0."""

    @classmethod
    def of(
        cls,
        logits: Float[Array, "..."],
        where: Bool[Array, "..."] | None = None,
        axis: int = -1,
    ) -> SoftmaxState:
        """Compute the state of each row's items.

        Args:
            logits: NumPy, PyTorch or JAX array of a floating type.
            where: boolean mask, True for the items that take part.
            axis: the axis of the items.

        Returns:
            A state whose fields have one entry per row, in float32 or better.
        """
        return state_of(prepare(logits, where, axis))

    def merge(self, other: SoftmaxState) -> SoftmaxState:
        """Combine the states of two pieces of the same rows.

        Args:
            other: the state of other items of the same rows.

        Returns:
            The state of the items of both.

        Raises:
            TypeError: if `other` is no state, or one of another array library.

        Examples:
            >>> left, right = SoftmaxState.of(logits[:, :8]), SoftmaxState.of(logits[:, 8:])
            >>> left.merge(right).entropy  # as of SoftmaxState.of(logits)
        """
        if not isinstance(other, SoftmaxState):
            raise TypeError(f"merge takes another SoftmaxState, got {type(other).__name__}")
        xp = _array.namespace(self=self.max, other=other.max)
        maximum = xp.maximum(self.max, other.max)
        top = _array.stop_gradient(maximum)
        mine, theirs = self.relative_to(top), other.relative_to(top)
        return SoftmaxState(
            max=maximum,
            min=xp.minimum(self.min, other.min),
            count=self.count + other.count,
            sum_exp=mine[0] + theirs[0],
            sum_offset_exp=mine[1] + theirs[1],
            sum_squared_offset_exp=mine[2] + theirs[2],
        )

    @property
    def log_sum_exp(self) -> Float[Array, "*rows"]:
        """log sum_k exp(e_k); -inf without items."""
        # The gradient of log l alone is already the softmax, so the shift carries none.
        return _array.stop_gradient(self.max) + self._xp.log(self._mass)

    @property
    def entropy(self) -> Float[Array, "*rows"]:
        """Entropy of the softmax in nats; 0 without items."""
        return self._xp.log(self._mass) - self.sum_offset_exp / self._mass

    @property
    def varentropy(self) -> Float[Array, "*rows"]:
        """Variance of log p under the softmax p, in square nats; 0 without items.

        It says how fast the entropy falls when the row is sharpened by an inverse temperature b:
        dH / dlog b = -varentropy, at b = 1. Equal weights have a varentropy of 0.
        """
        mean = self.sum_offset_exp / self._mass
        # Rounding may leave it just below 0.
        return _array.clamp(
            self.sum_squared_offset_exp / self._mass - mean**2, 0.0, math.inf, self._xp
        )

    @property
    def max_weight(self) -> Float[Array, "*rows"]:
        """The largest softmax weight; 0 without items."""
        xp = self._xp
        finite = xp.where(xp.abs(self.max) == math.inf, 0.0, self.max)
        # exp(0) = 1 is the top item's share of l, and carries its gradient.
        top = xp.exp(finite - _array.stop_gradient(finite))
        return xp.where(self.sum_exp == 0, 0.0, top / self._mass)

    @property
    def effective_items(self) -> Float[Array, "*rows"]:
        """exp(entropy), the number of equal weights with the same entropy; 0 without items."""
        xp = self._xp
        return xp.where(self.sum_exp == 0, 0.0, xp.exp(self.entropy))

    @property
    def spread(self) -> Float[Array, "*rows"]:
        """max - min, the delta of the paper's bounds; 0 without items."""
        xp = self._xp
        return xp.where(self.sum_exp == 0, 0.0, _difference(self.max, self.min, xp))

    @property
    def _xp(self) -> Any:
        return _array.namespace(state=self.max)

    @property
    def _mass(self) -> Float[Array, "*rows"]:
        """sum_exp, with 1 instead of the 0 of a row without items."""
        return self._xp.where(self.sum_exp == 0, 1.0, self.sum_exp)

    def relative_to(self, top: Array) -> tuple[Array, Array, Array]:
        """Express the sums relative to a common maximum, so that they can be added.

        Args:
            top: a maximum per row, at least as large as `max`.

        Returns:
            l, t and u relative to `top`.
        """
        xp = self._xp
        distance = _difference(_array.stop_gradient(self.max), top, xp)
        factor = xp.exp(distance)
        # A distance of -inf comes with a factor of 0, and their product is NaN.
        reach = xp.where(factor > 0, distance, 0.0)
        mass, moment = self.sum_exp, self.sum_offset_exp
        squared = self.sum_squared_offset_exp + reach * (2 * moment + reach * mass)
        return factor * mass, factor * (moment + reach * mass), factor * squared


def _difference(left: Array, right: Array, xp: Any) -> Array:
    """Subtract, with a difference of 0 between two equal infinities."""
    return xp.where(left == right, 0.0, left - xp.where(left == right, 0.0, right))


def state_of(rows: Rows) -> SoftmaxState:
    """Compute the state of prepared rows."""
    exponentials = rows.exponentials(1.0)
    # The offset of an item without mass would overflow when squared.
    offset = rows.xp.where(exponentials > 0, rows.offset, 0.0)
    mass = rows.sum(exponentials)
    moment, squared = rows.sum(offset * exponentials), rows.sum(offset**2 * exponentials)
    if rows.values.shape[rows.axis] == 0:
        minimum = -rows.maximum
    else:
        visible = rows.xp.where(rows.values == -math.inf, math.inf, rows.values)
        minimum = rows.xp.min(visible, axis=rows.axis, keepdims=True)
    kept = (rows.maximum, minimum, rows.items(), mass, moment, squared)
    return SoftmaxState(*(rows.squeeze(array) for array in kept))


def sums(rows: Rows, scale: Array | float) -> tuple[Array, Array]:
    """Return l = sum exp(scale * offset) and t = sum scale * offset * exp(scale * offset)."""
    exponentials = rows.exponentials(scale)
    return rows.sum(exponentials), scale * rows.sum(rows.offset * exponentials)


def entropy_of(rows: Rows, scale: Array | float) -> Float[Array, "..."]:
    """Return H = log l - t / l of softmax(scale * logits), with length 1 on the item axis."""
    mass, moment = sums(rows, scale)
    mass = rows.nonzero(mass)
    return rows.xp.log(mass) - moment / mass
