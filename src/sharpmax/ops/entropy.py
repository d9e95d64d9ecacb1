"""Shannon entropy of a softmax, from its logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax._array import Array
from sharpmax.ops._rows import inverse_temperature, prepare
from sharpmax.ops.state import entropy_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def entropy(
    logits: Float[Array, "*rows items"],
    *,
    temperature: Float[Array, "*rows 1"] | float = 1.0,
    where: Bool[Array, "*rows items"] | None = None,
    axis: int = -1,
) -> Float[Array, "*rows"]:
    """How spread out softmax(logits / temperature) is, in nats: 0 when one item has all, log n when
    uniform.

        H = -sum_k p_k log p_k = log l - t / l,   l = sum_k exp(s_k),   t = sum_k s_k exp(s_k),
        s_k = (e_k - max_j e_j) / temperature

    Both terms are non-negative, so nothing cancels, and no p log(p + 1e-9) is needed: that constant
    costs 1e-4 nats at 1e5 equal items. exp(H) is the number of items the row effectively looks at.
    In float32 or better whatever comes in; a row with no items has entropy 0. Entropy never rises
    as the temperature falls (Proposition 3.2, `sharpmax.theory.entropy_derivative`).
    """
    scale = inverse_temperature(temperature, logits, axis)
    rows = prepare(logits, where, axis)
    return rows.squeeze(entropy_of(rows, scale))
