"""inverse_temperature_for_entropy: the smallest factor that brings the entropy down to the target."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from sharpmax import _array
from sharpmax.ops import inverse_temperature
from strategies import GENERATOR, LIBRARY

TOLERANCE = {"float64": 1e-10, "float32": 2e-5}
compiled = jax.jit(sx.inverse_temperature_for_entropy)


@given(
    library=LIBRARY,
    rng=GENERATOR,
    items=st.sampled_from([2, 3, 17, 1000]),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=50)
def test_meets_the_target(library, rng, items, dtype):
    """A row that is sharp enough stays as it is; every other one meets its target."""
    if library.name == "jax":
        items = 17
    logits = rng.normal(size=(30, items)) * rng.uniform(0.05, 5, size=(30, 1))
    target = rng.uniform(0.05, 0.9, size=30) * math.log(items)
    function = compiled if library.name == "jax" else sx.inverse_temperature_for_entropy
    ours = function(library.array(logits, dtype), library.array(target, dtype))
    factor = library.numpy(ours).astype(np.float64)
    rounded = library.numpy(library.array(logits, dtype)).astype(np.float64)
    after = sx.entropy(rounded * factor[:, None])
    sharp = sx.entropy(rounded) <= target
    assert (factor[sharp] == 1).all()
    np.testing.assert_allclose(after[~sharp], target[~sharp], atol=TOLERANCE[dtype])


@given(
    logits=st.lists(st.floats(-50, 50), min_size=2, max_size=20),
    target=st.floats(1e-3, 3),
)
@example([0.0, 5.5e-188, -11.5], 0.5)
@example([0.0, 2.2e-311], 0.5)
def test_is_the_smallest(logits, target):
    row = np.array(logits)
    factor = float(sx.inverse_temperature_for_entropy(row, target))
    if factor == math.inf:
        # Two logits closer than 1e-308 are ties to every temperature that is a number.
        ties = np.sum(row.max() - row < 1e-307)
        assert target <= math.log(ties)
    else:
        assert factor >= 1
        assert sx.entropy(row, temperature=1 / factor) <= target + 1e-9
        if factor > 1:
            assert sx.entropy(row, temperature=(1 + 1e-6) / factor) >= target - 1e-9


def test_rows_that_cannot_or_need_not(lib: Library):
    inf, nan = np.inf, np.nan
    rows = [
        [1.0, 1.0, 0.0],
        [5.0, -5.0, -9.0],
        [-inf, -inf, -inf],
        [nan, 0.0, 1.0],
        [inf, 1.0, inf],
    ]
    ours = lib.numpy(sx.inverse_temperature_for_entropy(lib.array(np.array(rows)), 0.5))
    # Two equal maxima never fall below log 2; a row of nothing has entropy 0 already.
    np.testing.assert_array_equal(ours, [inf, 1.0, 1.0, nan, inf])


def test_any_axis_mask_and_broadcast_target(quick: Library, rng):
    logits, where = rng.normal(size=(9, 4)), rng.random((9, 4)) < 0.8
    options = {"where": quick.array(where, "bool"), "axis": 0}
    ours = quick.numpy(sx.inverse_temperature_for_entropy(quick.array(logits), 0.6, **options))
    for column in range(4):
        kept = logits[where[:, column], column]
        alone = float(sx.inverse_temperature_for_entropy(kept, 0.6))
        assert ours[column] == pytest.approx(alone, rel=1e-9)
    targets = quick.array(np.array([[0.3], [0.9]]))
    grid = quick.numpy(
        sx.inverse_temperature_for_entropy(quick.array(rng.normal(size=(2, 5, 8))), targets)
    )
    assert grid.shape == (2, 5)
    assert (grid[0] > 1).all()


def test_needs_few_steps(rng, monkeypatch):
    """Newton, not bisection: a handful of passes over the rows, whatever their scale."""
    calls = []
    original = inverse_temperature.entropy_and_variance
    monkeypatch.setattr(
        inverse_temperature, "entropy_and_variance", lambda *a: calls.append(1) or original(*a)
    )
    logits = rng.normal(size=(200, 64)) * rng.uniform(0.01, 10, size=(200, 1))
    sx.inverse_temperature_for_entropy(logits, 0.5)
    assert len(calls) < 30


def test_jit_vmap_and_gradients(rng):
    logits = rng.normal(size=(4, 9))
    plain = sx.inverse_temperature_for_entropy(logits, 0.8)
    array = jax.numpy.asarray(logits)
    mapped = jax.jit(jax.vmap(lambda x: sx.inverse_temperature_for_entropy(x, 0.8)))
    np.testing.assert_allclose(mapped(array), plain, rtol=1e-10)
    leaf = torch.tensor(logits, requires_grad=True)
    target = torch.full((4,), 0.8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sx.inverse_temperature_for_entropy, (leaf, target))
    compiled_gradient = jax.jit(jax.grad(lambda x: mapped(x).sum()))
    theirs = compiled_gradient(array)
    sx.inverse_temperature_for_entropy(leaf, 0.8).sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), theirs, rtol=1e-8)


def test_gives_up_never_silently_loops(monkeypatch):
    """The loop is bounded even if nothing converges."""
    steps = []
    original = _array.while_loop
    monkeypatch.setattr(
        _array, "while_loop", lambda c, b, s: original(c, lambda x: steps.append(1) or b(x), s)
    )
    sx.inverse_temperature_for_entropy(np.array([1e-300, 0.0, 0.0], np.float64), 0.5)
    assert 0 < len(steps) <= inverse_temperature.MOST_STEPS


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        (-0.1, ValueError, "target must be an entropy in nats, at least 0, got -0.1"),
        (math.nan, ValueError, "target must be an entropy"),
        (np.ones(3), ValueError, r"target of shape \(3,\) does not fit the rows, \(2,\)"),
        (np.ones(2, int), TypeError, "target must have a floating type"),
    ],
)
def test_bad_targets(target, kind, message):
    with pytest.raises(kind, match=message):
        sx.inverse_temperature_for_entropy(np.zeros((2, 4)), target)


def test_masked_items_do_not_overflow_the_variance_in_float32(quick: Library, rng):
    """An item without mass has an offset whose square float32 cannot hold."""
    logits, where = rng.normal(size=(4, 9)), np.ones((4, 9), bool)
    where[:, 6:] = False
    ours = sx.inverse_temperature_for_entropy(
        quick.array(logits, "float32"), 0.7, where=quick.array(where, "bool")
    )
    alone = sx.inverse_temperature_for_entropy(logits[:, :6].astype(np.float32), 0.7)
    assert (alone > 1).all()
    np.testing.assert_allclose(quick.numpy(ours), alone, rtol=1e-4)
