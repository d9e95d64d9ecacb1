"""Proposition 3.1: no input gets past the bound, and the product's bound is attained."""

from __future__ import annotations

import numpy as np
import pytest

from libraries import Library
from sharpmax import theory


def head(rng, *, dim=8, query_model=12, key_model=10):
    return rng.normal(size=(dim, query_model)), rng.normal(size=(dim, key_model))


def test_no_input_exceeds_it(lib: Library, rng):
    for _ in range(20):
        query_weight, key_weight = head(rng)
        y, items = rng.normal(size=12), rng.normal(size=(50, 10))
        logits = items @ key_weight.T @ (query_weight @ y)
        norms = float(np.linalg.norm(y)), float(np.linalg.norm(items, axis=-1).max())
        weights = lib.array(query_weight), lib.array(key_weight)
        printed = float(theory.spread_bound(*weights, *norms))
        product = float(theory.product_spread_bound(*weights, *norms))
        assert np.ptp(logits) <= product * (1 + 1e-12) <= printed * (1 + 1e-9)
        singular = [np.linalg.norm(weight, 2) for weight in (query_weight, key_weight)]
        assert printed == pytest.approx(
            2 * singular[0] * singular[1] * norms[0] * norms[1], rel=1e-10
        )


def test_the_product_s_bound_is_attained(lib: Library, rng):
    query_weight, key_weight = head(rng)
    left, _, right = np.linalg.svd(query_weight.T @ key_weight)
    y, items = 3.0 * left[:, 0], 2.0 * np.stack([right[0], -right[0]])
    logits = 0.25 * items @ key_weight.T @ (query_weight @ y)
    bound = theory.product_spread_bound(
        lib.array(query_weight), lib.array(key_weight), 3.0, 2.0, scale=0.25
    )
    assert float(bound) == pytest.approx(np.ptp(logits), rel=1e-10)


def test_the_printed_bound_is_attained_when_directions_agree(lib: Library):
    weight = lib.array(np.diag([5.0, 1.0]))
    assert float(theory.spread_bound(weight, weight, 1.0, 1.0)) == pytest.approx(50.0)
    crossed = lib.array(np.diag([1.0, 5.0]))
    assert float(theory.spread_bound(weight, crossed, 1.0, 1.0)) == pytest.approx(50.0)
    assert float(theory.product_spread_bound(weight, crossed, 1.0, 1.0)) == pytest.approx(10.0)


def test_many_heads_at_once_and_half_precision(quick: Library, rng):
    weights = rng.normal(size=(2, 6, 4, 9))
    together = theory.spread_bound(quick.array(weights[0]), quick.array(weights[1]), 1.0, 2.0)
    assert together.shape == (6,)
    one = theory.spread_bound(quick.array(weights[0, 3]), quick.array(weights[1, 3]), 1.0, 2.0)
    assert quick.numpy(together)[3] == pytest.approx(float(one), rel=1e-12)
    if quick.name != "strict":
        half = theory.spread_bound(
            quick.array(weights[0], "float16"), quick.array(weights[1], "float16"), 1.0, 2.0
        )
        np.testing.assert_allclose(quick.numpy(half), quick.numpy(together), rtol=1e-2)
        assert str(half.dtype).endswith("float32")


@pytest.mark.parametrize(
    ("shapes", "norms", "scale", "message"),
    [
        (
            ((4, 3), (5, 3)),
            (1.0, 1.0),
            1.0,
            r"query_weight \(4, 3\) and key_weight \(5, 3\) must be matrices",
        ),
        (((4,), (4,)), (1.0, 1.0), 1.0, "must be matrices"),
        (((4, 3), (4, 3)), (-1.0, 1.0), 1.0, "query_norm must be at least 0, got -1.0"),
        (((4, 3), (4, 3)), (1.0, 1.0), 0.0, "scale must be a positive finite number"),
    ],
)
def test_bad_input(shapes, norms, scale, message):
    for function in (theory.spread_bound, theory.product_spread_bound):
        with pytest.raises(ValueError, match=message):
            function(np.ones(shapes[0]), np.ones(shapes[1]), *norms, scale=scale)
