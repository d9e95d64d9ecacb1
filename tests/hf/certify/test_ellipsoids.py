"""Ellipsoids: the bounds hold for every vector inside, and some vectors reach them."""

from __future__ import annotations

import numpy as np
import pytest

from sharpmax.hf.certify.ellipsoids import (
    Ellipsoid,
    aligned_spread_bound,
    maximum_norm,
    rotary_spread_bound,
)
from sharpmax.theory import product_spread_bound


def random_ellipsoid(seed, heads=5, dim=6, model=9, centre=1.0):
    rng = np.random.default_rng(seed)
    return Ellipsoid.from_ball(
        rng.normal(size=(heads, dim, model)), centre * rng.normal(size=(heads, dim)), 2.0
    )


def ascend(ellipsoid, head, rng):
    """Return the largest norm that gradient ascent finds from many starts."""
    shape, centre, best = ellipsoid.shape[head], ellipsoid.centre[head], 0.0
    for _ in range(20):
        u = rng.normal(size=shape.shape[1])
        for _ in range(400):
            u = shape.T @ (centre + shape @ (u / np.linalg.norm(u)))
        best = max(best, np.linalg.norm(centre + shape @ (u / np.linalg.norm(u))))
    return best


@pytest.mark.parametrize("centre", [0.0, 1e-3, 1.0, 30.0])
@pytest.mark.parametrize(("dim", "model"), [(6, 9), (4, 2), (1, 3)])
def test_the_maximum_norm_is_that_of_gradient_ascent(dim, model, centre):
    ellipsoid = random_ellipsoid(1, dim=dim, model=model, centre=centre)
    rng = np.random.default_rng(2)
    found = [ascend(ellipsoid, head, rng) for head in range(5)]
    np.testing.assert_allclose(maximum_norm(ellipsoid), found, rtol=1e-7)


def test_degenerate_ellipsoids():
    point = Ellipsoid(np.zeros((1, 2, 2)), np.array([[3.0, 4.0]]))
    np.testing.assert_allclose(maximum_norm(point), 5.0)
    np.testing.assert_allclose(maximum_norm(Ellipsoid(np.zeros((1, 2, 2)), np.zeros((1, 2)))), 0.0)
    # The centre lies across the longest axis, where the gradient does not point to the maximum.
    across = Ellipsoid(np.diag([2.0, 1.0])[None], np.array([[0.0, 0.5]]))
    angle = np.linspace(0, np.pi, 100_001)
    wanted = np.hypot(2 * np.cos(angle), 0.5 + np.sin(angle)).max()
    np.testing.assert_allclose(maximum_norm(across), wanted, rtol=1e-8)


def test_the_aligned_bound_without_a_centre_is_proposition_3_1():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 3, 4, 7))
    none = np.zeros((3, 4))
    found = aligned_spread_bound(
        Ellipsoid.from_ball(query, none, 2.0), Ellipsoid.from_ball(key, none, 5.0)
    )
    np.testing.assert_allclose(found, product_spread_bound(query, key, 2.0, 5.0), rtol=1e-12)


def random_rotation(rng, dim, rotated):
    """Return a random rotation of each pair of channels, as in rotary embeddings."""
    matrix, half = np.eye(dim), rotated // 2
    for place, angle in enumerate(rng.uniform(0, 2 * np.pi, half)):
        block = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        matrix[np.ix_([place, place + half], [place, place + half])] = block
    return matrix


@pytest.mark.parametrize("rotated", [6, 4, 0])
@pytest.mark.parametrize("centre", [0.0, 3.0])
def test_no_rotated_pair_exceeds_the_rotary_bound(rotated, centre):
    rng = np.random.default_rng(3)
    query, key = random_ellipsoid(4, centre=centre), random_ellipsoid(5, centre=centre)
    bound = rotary_spread_bound(query, key, rotated)
    assert (bound <= 2 * maximum_norm(query) * maximum_norm(key) * (1 + 1e-12)).all()
    most = np.zeros(5)
    for _ in range(300):
        u, v = rng.normal(size=(2, 6))
        turn = random_rotation(rng, 6, rotated)
        for _ in range(10):  # maximise over one, then the other
            keys = key.centre + key.shape @ (v / np.linalg.norm(v))
            u = (np.swapaxes(query.shape, 1, 2) @ (keys @ turn)[..., None])[0, :, 0]
            queries = query.centre + query.shape @ (u / np.linalg.norm(u))
            v = (np.swapaxes(key.shape, 1, 2) @ (queries @ turn.T)[..., None])[0, :, 0]
            most = np.maximum(most, np.abs(np.einsum("hi,ij,hj->h", keys, turn, queries)))
    assert (2 * most <= bound).all()
    assert 2 * most[0] > 0.5 * bound[0]


def test_factors_that_cancel_between_queries_and_keys_do_not_matter():
    query, key = random_ellipsoid(6), random_ellipsoid(7)
    factors = np.tile(np.exp(np.random.default_rng(8).normal(size=(5, 3))), 2)
    moved = rotary_spread_bound(query.scale_channels(factors), key.scale_channels(1 / factors), 6)
    np.testing.assert_allclose(moved, rotary_spread_bound(query, key, 6), rtol=0.03)
    plain = (
        2
        * maximum_norm(query.scale_channels(factors))
        * maximum_norm(key.scale_channels(1 / factors))
    )
    assert (plain > 1.1 * moved).all()
