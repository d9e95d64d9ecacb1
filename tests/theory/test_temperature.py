"""Proposition 3.2: the derivative is that of the entropy, and never positive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from sharpmax import theory


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_equals_finite_differences(lib: Library, rng, scale):
    logits, step = rng.normal(size=(5, 12)), 1e-5
    higher = sx.entropy(logits, temperature=1 / (scale + step))
    lower = sx.entropy(logits, temperature=1 / (scale - step))
    ours = theory.entropy_derivative(lib.array(logits), inverse_temperature=scale)
    np.testing.assert_allclose(lib.numpy(ours), (higher - lower) / (2 * step), atol=1e-9)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=20).map(np.array), st.floats(0.01, 20))
def test_never_positive(logits, scale):
    assert theory.entropy_derivative(logits, inverse_temperature=scale) <= 0


def test_masks_axes_and_empty_rows(quick: Library, rng):
    logits, where = rng.normal(size=(6, 3)), np.ones((6, 3), bool)
    where[:, 1] = False
    where[4:, 2] = False
    ours = theory.entropy_derivative(quick.array(logits), where=quick.array(where, "bool"), axis=0)
    expected = [
        theory.entropy_derivative(logits[:, 0]),
        0.0,
        theory.entropy_derivative(logits[:4, 2]),
    ]
    np.testing.assert_allclose(quick.numpy(ours), expected, atol=1e-12)


def test_bad_input():
    with pytest.raises(
        ValueError, match="inverse_temperature must be a positive finite number, got -1"
    ):
        theory.entropy_derivative(np.zeros(3), inverse_temperature=-1)
