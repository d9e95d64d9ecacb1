"""Softmax with a sink: what is missing from 1 went to it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import sharpmax as sx
from libraries import Library
from sharpmax.normalisers import SoftmaxPlusOne


@pytest.mark.parametrize("sink", [0.0, -3.0, 2.5, 1000.0, -1000.0])
def test_the_sink_is_one_more_item(quick: Library, rng, sink):
    logits = rng.normal(size=(4, 9)) * 3
    ours = quick.numpy(SoftmaxPlusOne(sink)(quick.array(logits)))
    column = np.full((4, 1), sink)
    expected = scipy.special.softmax(np.append(logits, column, -1), axis=-1)[:, :-1]
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-300)


def test_a_sink_a_head_on_any_axis(quick: Library, rng):
    logits, sinks = rng.normal(size=(5, 2, 3)), np.array([[-1.0], [2.0]])
    ours = quick.numpy(SoftmaxPlusOne(quick.array(sinks))(quick.array(logits), axis=0))
    for head, sink in enumerate(sinks[:, 0]):
        alone = SoftmaxPlusOne(float(sink))(logits[:, head], axis=0)
        np.testing.assert_allclose(ours[:, head], alone, rtol=1e-12)


def test_no_sink_is_softmax(quick: Library, rng):
    logits = quick.array(np.append(rng.normal(size=(4, 9)), np.full((1, 9), -np.inf), 0))
    ours = quick.numpy(SoftmaxPlusOne(-np.inf)(logits))
    np.testing.assert_allclose(ours, quick.numpy(sx.softmax(logits)), rtol=1e-14)


def test_attends_to_nothing_when_all_logits_are_low(quick: Library):
    ours = quick.numpy(SoftmaxPlusOne()(quick.array([[-30.0, -40.0], [30.0, -40.0]])))
    np.testing.assert_allclose(ours.sum(-1), [0, 1], atol=1e-12)
