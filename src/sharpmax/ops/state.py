"""Softmax statistics of a row that is seen in pieces: the streaming entropy of the paper,
mergeable.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.ops._rows import Rows, prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class SoftmaxState(NamedTuple):
    """Everything about a row's softmax that can be known without keeping the row.

    Per row: m = max_k e_k,  l = sum_k exp(e_k - m),  t = sum_k (e_k - m) exp(e_k - m), and the
    least logit and the number of items. When a larger maximum m' arrives, with c = exp(m - m'),

        t <- c * (t + (m - m') * l),    l <- c * l,

    so two states merge into the state of both pieces together, in any order (associative and
    commutative). That is what streaming, chunked, ring and multi-device attention need. Keeping t
    centred on m matters: with logits near 1,000 the raw sum of e * exp(e) loses ten times the
    accuracy.

    Source: arXiv 2410.01104 (entropy while streaming); the merge is the log-sum-exp merge with one
    more column. A tuple, so that JAX and PyTorch carry it through jit, vmap and scan as it is. The
    state of no items, `SoftmaxState.of(logits[..., :0])`, is neutral in a merge.
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

    @classmethod
    def of(
        cls,
        logits: Float[Array, "*rows items"],
        where: Bool[Array, "*rows items"] | None = None,
        axis: int = -1,
    ) -> SoftmaxState:
        """The state of a row's items along `axis`; `where` is True for the items that take part."""
        return state_of(prepare(logits, where, axis))

    def merge(self, other: SoftmaxState) -> SoftmaxState:
        """The state of the items of both, which must be different items of the same rows."""
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
        )

    @property
    def log_sum_exp(self) -> Float[Array, "*rows"]:
        """log sum_k exp(e_k); -inf without items."""
        # The shift is a constant of the graph: the gradient of log l alone is already the softmax.
        return _array.stop_gradient(self.max) + self._xp.log(self._mass)

    @property
    def entropy(self) -> Float[Array, "*rows"]:
        """Entropy of the softmax in nats; 0 without items."""
        return self._xp.log(self._mass) - self.sum_offset_exp / self._mass

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
        """exp(entropy): how many equal weights would be as spread out; 0 without items."""
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

    def relative_to(self, top: Array) -> tuple[Array, Array]:
        """(l, t) relative to a maximum that is at least ours: such sums may simply be added."""
        xp = self._xp
        distance = _difference(_array.stop_gradient(self.max), top, xp)
        factor = xp.exp(distance)
        # A distance of -inf comes with a factor of 0, and their product is NaN.
        reach = xp.where(factor > 0, distance, 0.0)
        return factor * self.sum_exp, factor * (self.sum_offset_exp + reach * self.sum_exp)


def _difference(one: Array, other: Array, xp: Any) -> Array:
    """one - other, where two infinities of one sign are equal and not NaN apart."""
    return xp.where(one == other, 0.0, one - xp.where(one == other, 0.0, other))


def state_of(rows: Rows) -> SoftmaxState:
    """The state of prepared rows."""
    mass, moment = sums(rows, 1.0)
    if rows.values.shape[rows.axis] == 0:
        minimum = -rows.maximum
    else:
        visible = rows.xp.where(rows.values == -math.inf, math.inf, rows.values)
        minimum = rows.xp.min(visible, axis=rows.axis, keepdims=True)
    kept = (rows.maximum, minimum, rows.items(), mass, moment)
    return SoftmaxState(*(rows.squeeze(array) for array in kept))


def sums(rows: Rows, scale: Array | float) -> tuple[Array, Array]:
    """l = sum of exp(scale * offset) and t = sum of scale * offset * exp(scale * offset)."""
    exponentials = rows.exponentials(scale)
    return rows.sum(exponentials), scale * rows.sum(rows.offset * exponentials)


def entropy_of(rows: Rows, scale: Array | float) -> Float[Array, "*rows 1"]:
    """H = log l - t / l of softmax(scale * logits); 0 for a row without items."""
    mass, moment = sums(rows, scale)
    mass = rows.nonzero(mass)
    return rows.xp.log(mass) - moment / mass
