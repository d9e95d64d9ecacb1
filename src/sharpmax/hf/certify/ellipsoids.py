"""How far apart logits can be when queries and keys fill ellipsoids, as those of a layer behind a
normalisation do: Proposition 3.1 with what the weights really allow.

float64 throughout: a certificate should not be a matter of rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from jaxtyping import Float

STEPS = 16
"""Of `rotary_spread_bound`; on a language model a hundred gained under two percent over six."""


@dataclass(frozen=True)
class Ellipsoid:
    """The vectors centre + shape u with |u| <= 1, one such set a head."""

    shape: Float[np.ndarray, "heads dim rank"]
    centre: Float[np.ndarray, "heads dim"]

    @staticmethod
    def of(
        weight: Float[np.ndarray, "heads dim model"],
        bias: Float[np.ndarray, "heads dim"],
        radius: float,
    ) -> Ellipsoid:
        """The image of the ball of this radius under x -> weight x + bias.

        By weight^T = Q R, weight maps a ball onto what R^T maps it onto: dim x dim numbers instead
        of dim x model.
        """
        with _one_thread():
            _, factor = torch.linalg.qr(torch.from_numpy(radius * weight).mT, mode="r")
        return Ellipsoid(factor.mT.numpy(), bias)

    def scaled(self, factors: Float[np.ndarray, "heads dim"]) -> Ellipsoid:
        """Each channel multiplied by its factor."""
        return Ellipsoid(factors[..., None] * self.shape, factors * self.centre)

    def seen_by(self, matrix: Float[np.ndarray, "heads rows dim"]) -> Ellipsoid:
        """Its image under a matrix."""
        return Ellipsoid(matrix @ self.shape, (matrix @ self.centre[..., None])[..., 0])


def longest(ellipsoid: Ellipsoid) -> Float[np.ndarray, " heads"]:
    """The norm of the longest vector of each ellipsoid.

    The largest |c + S u|^2 over |u| <= 1 is the least value, over y > g_1, of

        y + sum_i y t_i^2 / (y - g_i),

    g_i the eigenvalues of S S^T, largest first, t_i the coordinates of c along its eigenvectors
    (Lagrangian duality, which is exact for one quadratic constraint: More and Sorensen 1983). Every
    such y gives an upper bound, so that stopping early stays valid. Without a centre it is the
    largest singular value of S.
    """
    return _longest(ellipsoid)[0]


def _longest(
    ellipsoid: Ellipsoid,
) -> tuple[Float[np.ndarray, " heads"], Float[np.ndarray, "heads dim"]]:
    """The norm of the longest vector, and its direction."""
    shape = torch.from_numpy(ellipsoid.shape)
    with _one_thread():
        values, vectors = (found.numpy() for found in torch.linalg.eigh(shape @ shape.mT))
    values = np.maximum(values, 0.0)
    along = (np.swapaxes(vectors, 1, 2) @ ellipsoid.centre[..., None])[..., 0]
    norm, direction = np.sqrt(values[:, -1]), vectors[..., -1]
    size = np.sqrt((along**2).sum(-1))
    moved = size > 0
    if moved.any():
        squared, coordinates = _least(values[moved], along[moved], size[moved])
        norm[moved] = np.sqrt(squared)
        direction[moved] = (vectors[moved] @ coordinates[..., None])[..., 0]
    return norm, direction


def _least(
    values: Float[np.ndarray, "heads dim"],
    along: Float[np.ndarray, "heads dim"],
    size: Float[np.ndarray, " heads"],
) -> tuple[Float[np.ndarray, " heads"], Float[np.ndarray, "heads dim"]]:
    """The least value of the dual of `longest`, and the longest vector's direction in coordinates
    along the eigenvectors: t_i / (1 - g_i / y).
    """
    below = values[:, -1:] - values

    def dual(above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """At y = g_1 + above; y - g_i in this order cannot vanish by rounding."""
        y = values[:, -1:] + above
        vector = along * (y / (below + above))
        return y[:, 0] + (vector * along).sum(-1), vector

    # Convex in y. The least one lies at |c| s_1 above g_1 or nearer, where the triangle inequality
    # has it: a search by thirds over the logarithm, since it may be much nearer.
    scale = (size * np.sqrt(values[:, -1]))[:, None]
    scale = np.where(scale > 0, scale, 1e-12 * size[:, None] ** 2)
    low, high = np.full_like(scale, -34.0), np.full_like(scale, 0.1)
    for _ in range(50):
        third = (high - low) / 3
        nearer = dual(scale * np.exp(low + third))[0] < dual(scale * np.exp(high - third))[0]
        high = np.where(nearer[:, None], high - third, high)
        low = np.where(nearer[:, None], low, low + third)
    value, vector = dual(scale * np.exp(high))
    return value, vector / np.sqrt((vector**2).sum(-1, keepdims=True))


def aligned_spread_bound(query: Ellipsoid, key: Ellipsoid) -> Float[np.ndarray, " heads"]:
    """The largest <q, k> - <q, k'>, for queries and keys that meet as they are, without a rotation.

    Attained: the keys' centre falls out of the difference, and with K the shape of the keys

        max <q, k - k'> = 2 max |K^T q|,

    the longest vector of the queries as the keys' shape sees them. Without a centre it is
    2 sigma_max(K^T Q), Proposition 3.1 of arXiv 2410.01104 for the product of the weights.
    """
    return 2.0 * longest(query.seen_by(np.swapaxes(key.shape, 1, 2)))


def rotary_spread_bound(
    query: Ellipsoid, key: Ellipsoid, rotated: int
) -> Float[np.ndarray, " heads"]:
    """A bound on <R q, k> - <R' q, k'> for all rotations of rotary position embeddings: channel i
    turns with channel i + rotated / 2, the channels from `rotated` on stand still.

    Turning changes no norm, which leaves |<R q, k>| <= |q| |k| and Proposition 3.1. But it mixes
    the two channels of a pair only. Multiplied by d_p in the queries and 1 / d_p in the keys, a
    pair p gives the same logits, so that for all positive d

        spread <= 2 max |d q| max |k / d|,

    whose logarithm is convex in log d. Begun at the d that balances the pairs' Frobenius norms,
    improved by steps along the subgradient; all are valid, and the least is returned.
    """
    pairs = _pairs(query.centre.shape[1], rotated)
    best = 2.0 * longest(query) * longest(key)
    logs = _balanced(query, key, pairs)
    for step in range(STEPS):
        factors = np.exp(logs[:, pairs])
        here, there = _longest(query.scaled(factors)), _longest(key.scaled(1 / factors))
        best = np.minimum(best, 2.0 * here[0] * there[0])
        slope = _by_pair(here[1] ** 2, pairs) - _by_pair(there[1] ** 2, pairs)
        logs = logs - 0.5 / (1 + step / 4) * slope
    return best


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small matrices: on a busy machine threads would spend a hundred times as long waiting
    for each other. NumPy's cannot be told so.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def _pairs(dim: int, rotated: int) -> np.ndarray:
    """The number of each channel's pair; a channel that stands still is alone."""
    half = rotated // 2
    channels = np.arange(dim)
    return np.where(channels < rotated, channels % max(half, 1), channels - half)


def _balanced(query: Ellipsoid, key: Ellipsoid, pairs: np.ndarray) -> np.ndarray:
    """log d for which a pair is as large in the queries as in the keys."""
    sizes = []
    for one in (query, key):
        squares = (one.shape**2).sum(-1) + one.centre**2
        sizes.append(_by_pair(squares, pairs))
    # A pair that one side never uses has no best factor; it is left nearly as it is.
    floor = 1e-12 * np.maximum(sizes[0].max(-1, keepdims=True), sizes[1].max(-1, keepdims=True))
    floor = np.maximum(floor, 1e-300)
    return 0.25 * np.log(np.maximum(sizes[1], floor) / np.maximum(sizes[0], floor))


def _by_pair(values: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The sum over each pair's channels."""
    return values @ (pairs[:, None] == np.arange(pairs.max() + 1)).astype(np.float64)
