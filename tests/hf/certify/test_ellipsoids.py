"""Ellipsoids of queries and keys: the bounds hold for every vector inside, and are reached."""

from __future__ import annotations

import numpy as np
import pytest

from sharpmax.hf.certify.ellipsoids import (
    Ellipsoid,
    aligned_spread_bound,
    longest,
    rotary_spread_bound,
)
from sharpmax.theory import product_spread_bound


def random(seed, heads=5, dim=6, model=9, centre=1.0):
    rng = np.random.default_rng(seed)
    return Ellipsoid.of(
        rng.normal(size=(heads, dim, model)), centre * rng.normal(size=(heads, dim)), 2.0
    )


def ascend(ellipsoid, head, rng):
    """The longest vector that steps uphill find from many beginnings."""
    shape, centre, best = ellipsoid.shape[head], ellipsoid.centre[head], 0.0
    for _ in range(20):
        u = rng.normal(size=shape.shape[1])
        for _ in range(400):
            u = shape.T @ (centre + shape @ (u / np.linalg.norm(u)))
        best = max(best, np.linalg.norm(centre + shape @ (u / np.linalg.norm(u))))
    return best


@pytest.mark.parametrize("centre", [0.0, 1e-3, 1.0, 30.0])
@pytest.mark.parametrize(("dim", "model"), [(6, 9), (4, 2), (1, 3)])
def test_the_longest_vector_is_found(dim, model, centre):
    ellipsoid = random(1, dim=dim, model=model, centre=centre)
    rng = np.random.default_rng(2)
    found = [ascend(ellipsoid, head, rng) for head in range(5)]
    np.testing.assert_allclose(longest(ellipsoid), found, rtol=1e-7)


def test_degenerate_ellipsoids():
    point = Ellipsoid(np.zeros((1, 2, 2)), np.array([[3.0, 4.0]]))
    np.testing.assert_allclose(longest(point), 5.0)
    np.testing.assert_allclose(longest(Ellipsoid(np.zeros((1, 2, 2)), np.zeros((1, 2)))), 0.0)
    # The centre lies across the longest axis: the largest is not where the gradient points.
    across = Ellipsoid(np.diag([2.0, 1.0])[None], np.array([[0.0, 0.5]]))
    angle = np.linspace(0, np.pi, 100_001)
    wanted = np.hypot(2 * np.cos(angle), 0.5 + np.sin(angle)).max()
    np.testing.assert_allclose(longest(across), wanted, rtol=1e-8)


def test_aligned_is_the_paper_s_product_without_a_centre():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 3, 4, 7))
    none = np.zeros((3, 4))
    found = aligned_spread_bound(Ellipsoid.of(query, none, 2.0), Ellipsoid.of(key, none, 5.0))
    np.testing.assert_allclose(found, product_spread_bound(query, key, 2.0, 5.0), rtol=1e-12)


def rotations(rng, dim, rotated):
    """A random turn of each pair of channels, as rotary embeddings have them."""
    matrix, half = np.eye(dim), rotated // 2
    for place, angle in enumerate(rng.uniform(0, 2 * np.pi, half)):
        block = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        matrix[np.ix_([place, place + half], [place, place + half])] = block
    return matrix


@pytest.mark.parametrize("rotated", [6, 4, 0])
@pytest.mark.parametrize("centre", [0.0, 3.0])
def test_no_turned_pair_exceeds_the_rotary_bound(rotated, centre):
    rng = np.random.default_rng(3)
    query, key = random(4, centre=centre), random(5, centre=centre)
    bound = rotary_spread_bound(query, key, rotated)
    assert (bound <= 2 * longest(query) * longest(key) * (1 + 1e-12)).all()
    most = np.zeros(5)
    for _ in range(300):
        u, v = rng.normal(size=(2, 6))
        turn = rotations(rng, 6, rotated)
        for _ in range(10):  # uphill in turn
            keys = key.centre + key.shape @ (v / np.linalg.norm(v))
            u = (np.swapaxes(query.shape, 1, 2) @ (keys @ turn)[..., None])[0, :, 0]
            queries = query.centre + query.shape @ (u / np.linalg.norm(u))
            v = (np.swapaxes(key.shape, 1, 2) @ (queries @ turn.T)[..., None])[0, :, 0]
            most = np.maximum(most, np.abs(np.einsum("hi,ij,hj->h", keys, turn, queries)))
    assert (2 * most <= bound).all()
    assert 2 * most[0] > 0.5 * bound[0]


def test_what_moves_between_queries_and_keys_does_not_count():
    query, key = random(6), random(7)
    factors = np.tile(np.exp(np.random.default_rng(8).normal(size=(5, 3))), 2)
    moved = rotary_spread_bound(query.scaled(factors), key.scaled(1 / factors), 6)
    np.testing.assert_allclose(moved, rotary_spread_bound(query, key, 6), rtol=0.03)
    plain = 2 * longest(query.scaled(factors)) * longest(key.scaled(1 / factors))
    assert (plain > 1.1 * moved).all()
