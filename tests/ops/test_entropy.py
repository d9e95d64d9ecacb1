"""entropy: in nats, from logits, exact where p log(p + 1e-9) is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from strategies import GENERATOR, LIBRARY, WITHOUT_JAX, dtypes_of


@given(
    library=LIBRARY,
    rng=GENERATOR,
    axis=st.sampled_from([-1, 0, 1]),
    temperature=st.floats(0.1, 30) | st.just(1.0),
)
@settings(max_examples=60)
def test_equals_the_definition(library, rng, axis, temperature):
    logits = rng.normal(size=(3, 5, 7)) * 3
    ours = sx.entropy(library.array(logits), temperature=temperature, axis=axis)
    weights = scipy.special.softmax(logits / temperature, axis=axis)
    expected = scipy.stats.entropy(weights, axis=axis)
    np.testing.assert_allclose(library.numpy(ours), expected, atol=1e-12)


@given(library=WITHOUT_JAX, items=st.sampled_from([1, 2, 1000, 100_000]))
def test_equal_logits_have_log_n(library, items):
    ours = float(sx.entropy(library.array(np.full(items, 3.7))))
    assert ours == pytest.approx(math.log(items), abs=1e-12)


def test_statistics_are_float32_or_better(quick: Library, rng):
    for dtype in dtypes_of(quick)[:-1]:
        logits = quick.array(rng.normal(size=(4, 33)), dtype)
        ours = sx.entropy(logits)
        assert str(ours.dtype).endswith("float32")
        exact = sx.entropy(quick.numpy(logits).astype(np.float64))
        np.testing.assert_allclose(quick.numpy(ours), exact, rtol=1e-6)


def test_awkward_rows(lib: Library):
    inf, nan = np.inf, np.nan
    logits = np.array(
        [[0.0, 0.0, 0.0], [-inf, -inf, -inf], [inf, inf, 1.0], [nan, 1.0, 2.0], [1e30, 0, 0]]
    )
    ours = lib.numpy(sx.entropy(lib.array(logits)))
    np.testing.assert_allclose(ours, [math.log(3), 0.0, math.log(2), nan, 0.0], atol=1e-12)
    assert lib.numpy(sx.entropy(lib.array(np.zeros((2, 0))))).tolist() == [0.0, 0.0]


def test_masking_is_truncation(quick: Library, rng):
    logits = rng.normal(size=(6, 11)) * 3
    where = rng.random((6, 11)) < 0.5
    filled = np.where(where, logits, np.nan)
    ours = quick.numpy(sx.entropy(quick.array(filled), where=quick.array(where, "bool")))
    expected = [float(sx.entropy(row[keep])) for row, keep in zip(logits, where, strict=True)]
    np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_a_scaled_row_that_overflows_is_sharp_and_not_nan(quick: Library):
    logits = quick.array(np.array([[3.0, -3e38, 1.0]]), "float32")
    with np.errstate(over="ignore"):
        ours = quick.numpy(sx.entropy(logits, temperature=1e-3))
    np.testing.assert_allclose(ours, [0.0], atol=1e-12)


def test_falls_with_the_temperature(rng):
    logits = rng.normal(size=(20, 30))
    temperatures = np.geomspace(100, 0.01, 40)
    curve = np.stack([sx.entropy(logits, temperature=float(t)) for t in temperatures])
    assert (np.diff(curve, axis=0) < 1e-12).all()
    assert (np.diff(curve, axis=0) < -1e-6).any()


def test_gradients(rng):
    logits = rng.normal(size=(3, 7))
    assert torch.autograd.gradcheck(sx.entropy, torch.tensor(logits, requires_grad=True))
    ties = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sx.entropy, ties)
    temperature = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    fixed = torch.tensor(logits)
    assert torch.autograd.gradcheck(lambda t: sx.entropy(fixed, temperature=t), temperature)
