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
    logits: Float[Array, "..."],
    *,
    inverse_temperature: float = 1.0,
    where: Bool[Array, "..."] | None = None,
    axis: int = -1,
) -> Float[Array, "..."]:
    """Compute how fast the entropy of softmax(b * logits) falls as the inverse temperature b rises.

        dH/db = -b * Var_p(e) <= 0,   p = softmax(b * e)

    Proposition 3.2 of arXiv 2410.01104 states the sign. The value follows from H = log Z - b E_p[e]
    and dE_p[e]/db = Var_p(e). It is 0 only if all logits are equal or one item has all the weight.

    Args:
        logits: NumPy, PyTorch or JAX array of a floating type.
        inverse_temperature: the b above, a positive number.
        where: boolean mask, True for the items that take part.
        axis: the axis of the items, which the answer does not have.

    Returns:
        One derivative per row, in nats.

    Raises:
        TypeError: if an argument has the wrong kind of type, or comes from another library.
        ValueError: if a shape does not fit, or the inverse temperature is not positive.
    """
    scale = _array.positive_number("inverse_temperature", inverse_temperature)
    rows = prepare(logits, where, axis)
    _, variance = entropy_and_variance(rows, scale)
    return rows.squeeze(-scale * variance)
