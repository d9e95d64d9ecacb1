"""Proposition 3.1, sharpness needs large weights: how far apart weights let the logits be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharpmax import _array
from sharpmax._array import Array

if TYPE_CHECKING:
    from jaxtyping import Float

    Numbers = Float[Array, "*heads"] | float


def spread_bound(
    query_weight: Float[Array, "*heads dim query_model"],
    key_weight: Float[Array, "*heads dim key_model"],
    query_norm: Numbers,
    key_norm: Numbers,
    *,
    scale: float = 1.0,
) -> Float[Array, "*heads"]:
    """The largest difference between two logits `e_i = scale * <Q y, K x_i>` of one row.

    Proposition 3.1 of arXiv 2410.01104:

        max_i e_i - min_j e_j <= 2 * sigma_max(Q) * sigma_max(K) * |y| * max_i |x_i|,

    for |y| <= query_norm and |x_i| <= key_norm. Normalisation layers in front fix the norms, so the
    singular values decide. Put the answer into `weight_bounds` or `items_until_dispersed`. `scale`
    is what the model multiplies the product by, usually 1 / sqrt(dim); the proposition has none.
    """
    xp = _check(query_weight, key_weight)
    largest = _largest_singular(query_weight, "query_weight", xp) * _largest_singular(
        key_weight, "key_weight", xp
    )
    return _times_norms(largest, query_norm, key_norm, scale)


def product_spread_bound(
    query_weight: Float[Array, "*heads dim query_model"],
    key_weight: Float[Array, "*heads dim key_model"],
    query_norm: Numbers,
    key_norm: Numbers,
    *,
    scale: float = 1.0,
) -> Float[Array, "*heads"]:
    """`spread_bound` with sigma_max(Q^T K) instead of sigma_max(Q) sigma_max(K): never larger.

    The logit is y^T (Q^T K) x, and only the product acts: its largest singular value is at most the
    product of the two, with equality only if the directions that Q and K stretch most are the same.
    Attained by y along the top left singular vector and two items at plus and minus the top right
    one.
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
    # No library has a singular value decomposition in half precision.
    wide = xp.astype(weight, _array.statistics_dtype(name, weight, xp), copy=False)
    return xp.max(xp.linalg.svdvals(wide), axis=-1)


def _times_norms(largest: Array, query_norm: Numbers, key_norm: Numbers, scale: float) -> Array:
    _array.positive_number("scale", scale)
    for name, norm in {"query_norm": query_norm, "key_norm": key_norm}.items():
        if _array.is_number(norm) and not norm >= 0:
            raise ValueError(f"{name} must be at least 0, got {norm!r}")
    _, (sigma, query, key), _ = _array.floating(
        sigma=largest, query_norm=query_norm, key_norm=key_norm
    )
    return 2.0 * float(scale) * sigma * query * key
