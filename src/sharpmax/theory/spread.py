"""Proposition 3.1, sharpness needs large weights: how far apart the logits can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharpmax import _array
from sharpmax._array import Array

if TYPE_CHECKING:
    from jaxtyping import Float

    Numbers = Float[Array, "..."] | float


def spread_bound(
    query_weight: Float[Array, "*#heads dim query_model"],
    key_weight: Float[Array, "*#heads dim key_model"],
    query_norm: Numbers,
    key_norm: Numbers,
    *,
    scale: float = 1.0,
) -> Float[Array, "..."]:
    """Bound the difference between two logits `e_i = scale * <Q y, K x_i>` of one row.

    Proposition 3.1 of arXiv 2410.01104:

        max_i e_i - min_j e_j <= 2 * sigma_max(Q) * sigma_max(K) * |y| * max_i |x_i|,

    for |y| <= query_norm and |x_i| <= key_norm. Normalisation layers fix the norms, so the singular
    values decide. Pass the answer to `weight_bounds` or `items_until_dispersed` as the spread. The
    proposition has no scale.

    Args:
        query_weight: the matrix Q per head, [..., dim, model], as a torch Linear stores it.
        key_weight: the matrix K per head, [..., dim, model].
        query_norm: bound on the norm of the query's input y, a number or one per head.
        key_norm: bound on the norms of the items' inputs x_i, a number or one per head.
        scale: the model's factor on the product, usually 1 / sqrt(dim).

    Returns:
        One bound per head, in float32 or better.

    Raises:
        TypeError: if the weights are no floating arrays of one library.
        ValueError: if the shapes do not fit, a norm is negative or the scale is not positive.
    """
    xp = _check(query_weight, key_weight)
    largest = _largest_singular(query_weight, "query_weight", xp) * _largest_singular(
        key_weight, "key_weight", xp
    )
    return _times_norms(largest, query_norm, key_norm, scale)


def product_spread_bound(
    query_weight: Float[Array, "*#heads dim query_model"],
    key_weight: Float[Array, "*#heads dim key_model"],
    query_norm: Numbers,
    key_norm: Numbers,
    *,
    scale: float = 1.0,
) -> Float[Array, "..."]:
    """Bound the difference between two logits by sigma_max(Q^T K), at most as `spread_bound` does.

        max_i e_i - min_j e_j <= 2 * sigma_max(Q^T K) * |y| * max_i |x_i|

    The logit is y^T (Q^T K) x, so only the product matters. Its largest singular value is at most
    sigma_max(Q) sigma_max(K), and equal only if Q and K stretch the same direction most. The bound
    is attained by y along the top left singular vector and two items at plus and minus the top
    right one.

    Args:
        query_weight: the matrix Q per head, [..., dim, model], as a torch Linear stores it.
        key_weight: the matrix K per head, [..., dim, model].
        query_norm: bound on the norm of the query's input y, a number or one per head.
        key_norm: bound on the norms of the items' inputs x_i, a number or one per head.
        scale: the model's factor on the product, usually 1 / sqrt(dim).

    Returns:
        One bound per head, in float32 or better.

    Raises:
        TypeError: if the weights are no floating arrays of one library.
        ValueError: if the shapes do not fit, a norm is negative or the scale is not positive.
    """
    xp = _check(query_weight, key_weight)
    dtype = _array.statistics_dtype("query_weight", query_weight, xp)
    query, key = (xp.astype(weight, dtype, copy=False) for weight in (query_weight, key_weight))
    product = xp.matmul(xp.linalg.matrix_transpose(query), key)
    return _times_norms(_largest_singular(product, "the product", xp), query_norm, key_norm, scale)


def _check(query_weight: Array, key_weight: Array) -> Any:
    xp = _array.namespace(query_weight=query_weight, key_weight=key_weight)
    shapes = tuple(query_weight.shape), tuple(key_weight.shape)
    if min(query_weight.ndim, key_weight.ndim) < 2 or shapes[0][-2] != shapes[1][-2]:
        raise ValueError(
            f"query_weight {shapes[0]} and key_weight {shapes[1]} must be matrices "
            "[..., dim, model] with the same dim (a torch Linear's weight, cut to one head, is one)"
        )
    return xp


def _largest_singular(weight: Array, name: str, xp: Any) -> Array:
    # No library has a singular value decomposition for half precision.
    wide = xp.astype(weight, _array.statistics_dtype(name, weight, xp), copy=False)
    return xp.max(xp.linalg.svdvals(wide), axis=-1)


def _times_norms(largest: Array, query_norm: Numbers, key_norm: Numbers, scale: float) -> Array:
    _array.positive_number("scale", scale)
    for name, norm in {"query_norm": query_norm, "key_norm": key_norm}.items():
        if _array.is_number(norm) and not norm >= 0:
            raise ValueError(f"{name} must be at least 0, got {norm!r}")
    _, (sigma, query, key), _ = _array.to_floating(
        sigma=largest, query_norm=query_norm, key_norm=key_norm
    )
    return 2.0 * float(scale) * sigma * query * key
