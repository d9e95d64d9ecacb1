"""Sigmoid, ReLU, linear and stick-breaking: weights that no sum divides, or a gentle one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sharpmax as sx
from libraries import Library
from normalisers.slow import sigmoid
from sharpmax.normalisers import Linear, PositiveLinear, Relu, Sigmoid, StickBreaking


@pytest.mark.parametrize("bias", [0.0, -2.0, 3.5])
def test_sigmoid_with_a_bias(quick: Library, rng, bias):
    logits = rng.normal(size=(4, 9)) * 5
    expected = [sigmoid(row, bias) for row in logits]
    for given in (bias, quick.array([[bias]])):
        ours = quick.numpy(Sigmoid(given)(quick.array(logits)))
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_sigmoid_of_equal_logits_is_near_softmax(quick: Library):
    """1 / (1 + n) against 1 / n."""
    ours = quick.numpy(Sigmoid()(quick.array(np.zeros((1, 1000)))))
    np.testing.assert_allclose(ours, 1 / 1001, rtol=1e-12)


def test_sigmoid_keeps_small_weights_in_single_precision():
    """By the half-angle tanh they would all be 0."""
    logits = np.array([-30.0, -40.0, 0.0], np.float32)
    # An exponent of 41 is rounded twice.
    close = 2 * 41 * 2**-24
    np.testing.assert_allclose(Sigmoid()(logits)[:2], np.exp([-30, -40.0]) / 3, rtol=close)


@pytest.mark.parametrize("normaliser", [Sigmoid(math.log(3)), StickBreaking()])
def test_the_slope_at_0_is_not_lost(normaliser):
    """abs has no slope there, and the logistic function has its steepest."""
    leaf = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(normaliser, leaf)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 1.5])
def test_relu_over_a_power_of_the_length(quick: Library, rng, power):
    logits = rng.normal(size=(4, 9))
    ours = quick.numpy(Relu(power)(quick.array(logits)))
    np.testing.assert_allclose(ours, np.maximum(logits, 0) / 9**power, rtol=1e-12)


def test_linear_is_linear(quick: Library, rng):
    one, other = rng.normal(size=(2, 4, 9))
    both = quick.numpy(Linear()(quick.array(one + 2 * other)))
    parts = quick.numpy(Linear()(quick.array(one))) + 2 * quick.numpy(Linear()(quick.array(other)))
    np.testing.assert_allclose(both, parts, atol=1e-15)


def test_positive_linear_is_softmax_below_zero(quick: Library, rng):
    """Where its function is the exponential, also where that underflows."""
    for shift in (0.0, 1000.0):
        logits = quick.array(-np.abs(rng.normal(size=(4, 9))) - shift)
        ours = quick.numpy(PositiveLinear()(logits))
        np.testing.assert_allclose(ours, quick.numpy(sx.softmax(logits)), rtol=1e-12)


def test_positive_linear_grows_linearly(quick: Library):
    ours = quick.numpy(PositiveLinear()(quick.array([[0.0, 1.0, 9.0]])))
    np.testing.assert_allclose(ours, [[1 / 13, 2 / 13, 10 / 13]], rtol=1e-12)


def test_what_is_left_of_the_stick(quick: Library, rng):
    logits = rng.normal(size=(4, 9))
    ours = quick.numpy(StickBreaking()(quick.array(logits)))
    left = np.prod(1 / (1 + np.exp(logits)), axis=-1)
    np.testing.assert_allclose(ours.sum(-1), 1 - left, rtol=1e-12)


def test_earlier_items_take_nothing_from_later_ones(quick: Library, rng):
    logits = rng.normal(size=(3, 9))
    longer = np.append(rng.normal(size=(3, 5)) + 9, logits, -1)
    short, long = (quick.numpy(StickBreaking()(quick.array(one))) for one in (logits, longer))
    np.testing.assert_allclose(long[:, 5:], short, rtol=1e-13)


def test_stick_breaking_where_the_plain_product_is_0(quick: Library):
    """30 logits of 800: the product of what is left underflows, its logarithm does not."""
    logits = np.append([800.0 * 29 + 5.0], np.full(29, -800.0))
    ours = quick.numpy(StickBreaking()(quick.array(logits[None])))[0]
    np.testing.assert_allclose(ours, np.append([1.0], np.zeros(29)), atol=1e-300)
    falling = quick.numpy(StickBreaking()(quick.array([[0.0, 500.0, 100.0]])))[0]
    np.testing.assert_allclose(np.log(falling[:2]), [-math.log(2) - 600, -100.0], rtol=1e-12)
