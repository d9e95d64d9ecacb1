"""Softmax at a temperature, its entropy, and the adaptive temperature of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax._array import Array
from sharpmax.ops._rows import Rows, inverse_temperature, prepare
from sharpmax.ops.inverse_temperature import solver
from sharpmax.ops.state import entropy_of, state_of
from sharpmax.policies import PAPER, Policy, inverse_temperatures, traits

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def softmax(
    logits: Float[Array, "..."],
    *,
    temperature: Float[Array, "..."] | float = 1.0,
    where: Bool[Array, "..."] | None = None,
    axis: int = -1,
) -> Float[Array, "..."]:
    """Turn logits into weights that sum to one and grow exponentially with the logit.

        softmax(e)_k = exp(e_k / temperature) / sum_j exp(e_j / temperature)

    This is the distribution that maximises `<p, e> + temperature * H(p)`. As the temperature goes
    to 0, all weight goes to the largest logit (shared between ties); as it grows, the weights
    become 1/n. For bounded logits and growing n they become 1/n at *every* temperature: Lemma 2.1
    of arXiv 2410.01104, see `sharpmax.theory`.

    Args:
        logits: NumPy, PyTorch or JAX array of a floating type.
        temperature: positive number, or an array with one entry per row (length 1 on `axis`).
        where: boolean mask, True for the items that take part. Masking an item equals removing it.
        axis: the axis of the items.

    Returns:
        The weights, with the library, device, type and gradient graph of `logits`. A row without
        items gives zeros, +inf logits share the mass, and a NaN stays in its row.

    Raises:
        TypeError: if an argument has the wrong kind of type, or comes from another library.
        ValueError: if a shape does not fit, or the temperature is not positive.

    Examples:
        >>> sharpmax.softmax(np.array([1.0, 2.0, 3.0]), temperature=0.5)
        array([0.01587624, 0.11731043, 0.86681333])
    """
    scale = inverse_temperature(temperature, logits, axis)
    rows = prepare(logits, where, axis).at_high_temperature(scale)
    return _weights(rows, scale, logits)


def entropy(
    logits: Float[Array, "..."],
    *,
    temperature: Float[Array, "..."] | float = 1.0,
    where: Bool[Array, "..."] | None = None,
    axis: int = -1,
) -> Float[Array, "..."]:
    """Measure how spread out softmax(logits / temperature) is, in nats.

    The entropy is 0 if one item has all the weight and log n if all n weights are equal. exp(H) is
    the number of items that the row effectively attends to.

        H = -sum_k p_k log p_k = log l - t / l,   l = sum_k exp(s_k),   t = sum_k s_k exp(s_k),
        s_k = (e_k - max_j e_j) / temperature

    Both terms are at least 0, so nothing cancels. The usual p log(p + 1e-9) would be wrong by 1e-4
    nats for 1e5 equal items. The entropy never rises as the temperature falls (Proposition 3.2 of
    arXiv 2410.01104, see `sharpmax.theory.entropy_derivative`).

    Args:
        logits: NumPy, PyTorch or JAX array of a floating type.
        temperature: positive number, or an array with one entry per row (length 1 on `axis`).
        where: boolean mask, True for the items that take part.
        axis: the axis of the items, which the answer does not have.

    Returns:
        One entropy per row, in float32 or better. A row without items has entropy 0.

    Raises:
        TypeError: if an argument has the wrong kind of type, or comes from another library.
        ValueError: if a shape does not fit, or the temperature is not positive.

    Examples:
        >>> float(sharpmax.entropy(np.zeros(8)))  # log 8
        2.0794415416798357
    """
    scale = inverse_temperature(temperature, logits, axis)
    rows = prepare(logits, where, axis).at_high_temperature(scale)
    return rows.squeeze(entropy_of(rows, scale))


def adaptive_temperature_softmax(
    logits: Float[Array, "..."],
    *,
    policy: Policy = PAPER,
    where: Bool[Array, "..."] | None = None,
    axis: int = -1,
) -> Float[Array, "..."]:
    """Compute a softmax that sharpens each row according to its own entropy.

        weights = softmax(policy(H, n) * logits),   H = entropy(logits),   n = number of items

    With the default policy this is Figure 4 of arXiv 2410.01104, but with an exact entropy instead
    of one with 1e-9 inside its logarithm. The gradient runs through the inverse temperature too.

    Args:
        logits: NumPy, PyTorch or JAX array of a floating type.
        policy: function of (entropy, number of items) that returns the inverse temperature.
        where: boolean mask, True for the items that take part.
        axis: the axis of the items.

    Returns:
        The weights, with the library, device, type and gradient graph of `logits`.

    Raises:
        TypeError: if an argument has the wrong kind of type, or comes from another library.
        ValueError: if a shape does not fit, or the policy returns one that does not.
    """
    rows = prepare(logits, where, axis)
    if traits(policy).needs_varentropy:
        state = state_of(rows)
        known = state.entropy, state.count, state.varentropy
        scale = inverse_temperatures(policy, *known, solver(rows))
    else:
        nats = rows.squeeze(entropy_of(rows, 1.0))
        scale = inverse_temperatures(policy, nats, rows.squeeze(rows.items()))
    return _weights(rows, rows.expand(scale), logits)


def _weights(rows: Rows, scale: Array | float, logits: Array) -> Array:
    exponentials = rows.exponentials(scale)
    weights = exponentials / rows.nonzero(rows.sum(exponentials))
    return rows.xp.astype(weights, logits.dtype, copy=False)
