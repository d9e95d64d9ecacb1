"""ASEntmax: entmax of logits times a law of the length."""

from __future__ import annotations

import math

import numpy as np
import pytest

from libraries import Library
from normalisers.slow import adaptive_scalable_entmax as slow
from sharpmax.normalisers import AdaptiveScalableEntmax, Entmax


@pytest.mark.parametrize(
    "law", [(0.5, 2.0, 1.0), (1.0, 0.3, -1.5), (0.0, 1.0, 2.0), (2.0, 0.0, 1.0)]
)
def test_any_law_of_the_length(quick: Library, rng, law):
    logits = rng.normal(size=(4, 9))
    ours = quick.numpy(AdaptiveScalableEntmax(1.5, *law)(quick.array(logits)))
    for row, weights in zip(logits, ours, strict=True):
        np.testing.assert_allclose(weights, slow(row, *law), atol=2e-14)


def test_the_length_is_what_a_row_can_see(quick: Library, rng):
    logits, where = rng.normal(size=(1, 12)), np.arange(12)[None] < 5
    masked = AdaptiveScalableEntmax()(quick.array(logits), where=quick.array(where, "bool"))
    expected = Entmax()((1 + math.log(5)) * logits[:, :5])
    np.testing.assert_allclose(quick.numpy(masked)[:, :5], expected, atol=2e-14)


def test_a_law_a_row(quick: Library, rng):
    """As the paper has it: computed from the token, given as arrays."""
    logits = rng.normal(size=(2, 8))
    scale, exponent = np.array([[0.4], [1.2]]), np.array([[-0.5], [0.8]])
    ours = AdaptiveScalableEntmax(scale=quick.array(scale), exponent=quick.array(exponent))
    for row, s, e, weights in zip(
        logits, scale[:, 0], exponent[:, 0], quick.numpy(ours(quick.array(logits))), strict=True
    ):
        np.testing.assert_allclose(weights, slow(row, 1.0, s, e), atol=2e-14)


def test_another_alpha(rng):
    logits = rng.normal(size=(3, 8))
    ours = AdaptiveScalableEntmax(alpha=2.0, offset=0.5, scale=0.0)(logits)
    np.testing.assert_allclose(ours, Entmax(2.0)(0.5 * logits), atol=1e-14)
