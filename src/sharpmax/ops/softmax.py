"""Softmax at a temperature, and the adaptive temperature of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax._array import Array
from sharpmax.ops._rows import Rows, inverse_temperature, prepare
from sharpmax.ops.state import entropy_of
from sharpmax.policies import PAPER, Policy, inverse_temperatures

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def softmax(
    logits: Float[Array, "*rows items"],
    *,
    temperature: Float[Array, "*rows 1"] | float = 1.0,
    where: Bool[Array, "*rows items"] | None = None,
    axis: int = -1,
) -> Float[Array, "*rows items"]:
    """Turn logits into weights that sum to one, larger logits getting exponentially more.

        softmax(e)_k = exp(e_k / temperature) / sum_j exp(e_j / temperature)

    The distribution that maximises `<p, e> + temperature * H(p)`. As the temperature goes to 0 all
    weight goes to the largest logit (shared between ties), as it grows the weights become 1/n. For
    bounded logits and growing n they become 1/n at *every* temperature: Lemma 2.1 of arXiv
    2410.01104, `sharpmax.theory`.

    `where` is True for the items that take part: masking equals leaving the item out. A row with no
    items gives zeros. The answer has the library, device, type and gradient of `logits`.
    """
    scale = inverse_temperature(temperature, logits, axis)
    rows = prepare(logits, where, axis)
    return _weights(rows, scale, logits)


def adaptive_temperature_softmax(
    logits: Float[Array, "*rows items"],
    *,
    policy: Policy = PAPER,
    where: Bool[Array, "*rows items"] | None = None,
    axis: int = -1,
) -> Float[Array, "*rows items"]:
    """Sharpen each row by as much as its own entropy asks for.

        weights = softmax(policy(H, n) * logits),   H = entropy(logits),   n = number of items

    With the default policy this is Figure 4 of arXiv 2410.01104 (`sharpmax.PAPER`), with the
    entropy computed exactly rather than with 1e-9 inside its logarithm. The gradient runs through
    the inverse temperature too.
    """
    rows = prepare(logits, where, axis)
    entropy = rows.squeeze(entropy_of(rows, 1.0))
    scale = inverse_temperatures(policy, entropy, rows.squeeze(rows.items()))
    return _weights(rows, rows.expand(scale), logits)


def _weights(rows: Rows, scale: Array | float, logits: Array) -> Array:
    exponentials = rows.exponentials(scale)
    weights = exponentials / rows.nonzero(rows.sum(exponentials))
    return rows.xp.astype(weights, logits.dtype, copy=False)
