"""Proposition 3.2, decreasing the temperature decreases the entropy: by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.ops._rows import prepare
from sharpmax.ops.inverse_temperature import entropy_and_variance

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def entropy_derivative(
    logits: Float[Array, "*rows items"],
    *,
    inverse_temperature: float = 1.0,
    where: Bool[Array, "*rows items"] | None = None,
    axis: int = -1,
) -> Float[Array, "*rows"]:
    """How fast the entropy of softmax(b * logits) falls as the inverse temperature b rises, in
    nats.

        dH/db = -b * Var_p(e) <= 0,   p = softmax(b * e)

    Proposition 3.2 of arXiv 2410.01104 states the sign. The value follows from H = log Z - b E_p[e]
    and dE_p[e]/db = Var_p(e); it is zero only if all logits are equal (or one item has all the
    weight).
    """
    scale = _array.positive_number("inverse_temperature", inverse_temperature)
    rows = prepare(logits, where, axis)
    _, variance = entropy_and_variance(rows, scale)
    return rows.squeeze(-scale * variance)
