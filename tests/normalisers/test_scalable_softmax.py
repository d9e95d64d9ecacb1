"""Scalable softmax: a power of the number of items, and a largest weight that does not fade."""

from __future__ import annotations

import numpy as np
import pytest

import sharpmax as sx
from libraries import Library
from normalisers.slow import scalable_softmax as slow
from sharpmax.normalisers import ScalableSoftmax


@pytest.mark.parametrize(("scale", "bias"), [(0.43, 0.0), (1.0, -0.5), (0.0, 1.0), (-0.7, 0.0)])
def test_any_scale(quick: Library, rng, scale, bias):
    """A negative one too, which a learned scale may become."""
    logits = rng.normal(size=(4, 9)) * 20
    ours = quick.numpy(ScalableSoftmax(scale, bias)(quick.array(logits)))
    for row, weights in zip(logits, ours, strict=True):
        np.testing.assert_allclose(weights, slow(row, scale, bias), rtol=1e-11, atol=1e-300)


def test_a_negative_scale_does_not_overflow(quick: Library, rng):
    """The smallest logit is then the top, and nothing may be left to the largest's."""
    logits = rng.normal(size=(4, 9)) * 1000
    ours = quick.numpy(ScalableSoftmax(-1.0)(quick.array(logits)))
    np.testing.assert_allclose(ours, sx.softmax(-np.log(9) * logits), rtol=1e-11, atol=1e-300)


def test_the_largest_weight_does_not_fade():
    """The example of the paper's first figure: one logit of 3 among others of -2."""
    for items in (10, 1000, 100_000):
        logits = np.append(np.full(items - 1, -2.0), 3.0)
        assert ScalableSoftmax()(logits)[-1] > 0.92
    assert sx.softmax(logits)[-1] < 0.002


def test_a_scale_a_head(quick: Library, rng):
    logits = rng.normal(size=(2, 3, 4, 6))
    scales = np.array([0.1, 0.5, 2.0])
    ours = quick.numpy(ScalableSoftmax(quick.array(scales[:, None, None]))(quick.array(logits)))
    for head, scale in enumerate(scales):
        expected = quick.numpy(ScalableSoftmax(float(scale))(quick.array(logits[:, head])))
        np.testing.assert_allclose(ours[:, head], expected, rtol=1e-12)


def test_a_scale_may_be_one_entry_without_axes(quick: Library, rng):
    logits = quick.array(rng.normal(size=(2, 6)), "float32")
    ours = ScalableSoftmax(quick.array(0.5, "float32"))(logits)
    assert ours.dtype == logits.dtype
    np.testing.assert_allclose(
        quick.numpy(ours), quick.numpy(ScalableSoftmax(0.5)(logits)), rtol=1e-6
    )


def test_without_a_scale_it_is_softmax(quick: Library, rng):
    logits = quick.array(rng.normal(size=(4, 9)))
    ours = quick.numpy(ScalableSoftmax(scale=0.0, bias=2.0)(logits))
    np.testing.assert_allclose(ours, quick.numpy(sx.softmax(logits, temperature=0.5)), rtol=1e-12)
