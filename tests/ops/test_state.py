"""SoftmaxState: any split, any order, the same answer; infinities and empty pieces included."""

from __future__ import annotations

import functools
import itertools
import math

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from libraries import LIBRARIES, Library

PROPERTIES = (
    "log_sum_exp", "entropy", "max", "min", "count", "max_weight", "effective_items", "spread",
)  # fmt: skip


def read(lib: Library, state: sx.SoftmaxState) -> dict[str, np.ndarray]:
    return {name: lib.numpy(getattr(state, name)) for name in PROPERTIES}


def merged(states):
    return functools.reduce(lambda one, other: one.merge(other), states)


def assert_same(ours, theirs, **tolerance):
    for name in PROPERTIES:
        np.testing.assert_allclose(ours[name], theirs[name], err_msg=name, **tolerance)


def test_is_what_it_says(lib: Library, rng):
    logits = rng.normal(size=(5, 13)) * 3
    weights = sx.softmax(logits)
    state = sx.SoftmaxState.of(lib.array(logits))
    expected = {
        "log_sum_exp": np.log(np.exp(logits).sum(-1)),
        "entropy": -(weights * np.log(weights)).sum(-1),
        "max": logits.max(-1),
        "min": logits.min(-1),
        "count": np.full(5, 13),
        "max_weight": weights.max(-1),
        "effective_items": np.exp(-(weights * np.log(weights)).sum(-1)),
        "spread": np.ptp(logits, axis=-1),
    }
    assert_same(read(lib, state), expected, rtol=1e-12)


@given(
    rows=st.lists(
        st.one_of(st.floats(-30, 30), st.sampled_from([math.inf, -math.inf])),
        min_size=1,
        max_size=24,
    ),
    cuts=st.lists(st.integers(0, 24), max_size=5),
    seed=st.integers(0, 2**32 - 1),
    library=st.sampled_from(LIBRARIES),
)
def test_any_split_and_any_order(rows, cuts, seed, library):
    logits = np.array(rows)
    pieces = np.split(logits, sorted(min(cut, logits.size) for cut in cuts))  # some are empty
    order = np.random.default_rng(seed).permutation(len(pieces))
    states = [sx.SoftmaxState.of(library.array(pieces[place])) for place in order]
    whole = read(library, sx.SoftmaxState.of(library.array(logits)))
    assert_same(read(library, merged(states)), whole, rtol=1e-12, atol=1e-12)
    halves = merged(states[: len(states) // 2 + 1]), states[len(states) // 2 + 1 :]
    tree = halves[0].merge(merged(halves[1])) if halves[1] else halves[0]
    assert_same(read(library, tree), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 5e-5)])
@pytest.mark.parametrize("piece", [1, 7, 64, 1000])
def test_large_offsets_lose_nothing(lib: Library, rng, dtype, tolerance, piece):
    """Logits near 1,000, seen in pieces: the entropy of what the type holds, to its own precision."""
    logits = lib.array(rng.normal(size=(3, 1000)) * 2 + 1000.0, dtype)
    states = [
        sx.SoftmaxState.of(logits[:, begin : min(begin + piece, 1000)])
        for begin in range(0, 1000, piece)
    ]
    exact = sx.SoftmaxState.of(lib.numpy(logits).astype(np.float64) - 1000.0)
    ours = merged(states)
    np.testing.assert_allclose(lib.numpy(ours.entropy), exact.entropy, atol=tolerance, rtol=0)
    np.testing.assert_allclose(lib.numpy(ours.max_weight), exact.max_weight, atol=tolerance, rtol=0)


def test_a_centred_sum_is_why(rng):
    """The raw sum of e * exp(e) fails the tolerance above, so the test can fail."""
    logits = (rng.normal(size=1000) * 2 + 1000.0).astype(np.float32)
    top = logits.max()
    mass, raw = np.float32(0), np.float32(0)
    for logit in logits:
        weight = np.exp(logit - top)
        mass, raw = mass + weight, raw + logit * weight
    naive = top + np.log(mass) - raw / mass
    assert abs(naive - sx.entropy(logits.astype(np.float64))) > 5e-5


def test_the_state_of_nothing_is_neutral(lib: Library, rng):
    logits = lib.array(rng.normal(size=(4, 6)))
    state, nothing = sx.SoftmaxState.of(logits), sx.SoftmaxState.of(logits[:, :0])
    assert_same(read(lib, nothing.merge(state)), read(lib, state), rtol=0)
    assert_same(read(lib, state.merge(nothing)), read(lib, state), rtol=0)
    empty = read(lib, nothing.merge(nothing))
    expected = {"log_sum_exp": -math.inf, "max": -math.inf, "min": math.inf}
    for name in PROPERTIES:
        assert (empty[name] == expected.get(name, 0.0)).all(), name


def test_masked_rows_merge_as_nothing(lib: Library, rng):
    """A row that is masked in one piece must not weigh in: its log-sum-exp is -inf, not 0."""
    logits = rng.normal(size=(2, 6)) - 50.0
    where = np.ones((2, 6), bool)
    where[0, :3] = False
    array, mask = lib.array(logits), lib.array(where, "bool")
    pieces = [sx.SoftmaxState.of(array[:, :3], mask[:, :3]), sx.SoftmaxState.of(array[:, 3:])]
    ours = read(lib, merged(pieces))
    assert_same(ours, read(lib, sx.SoftmaxState.of(array, mask)), rtol=1e-12)
    assert ours["count"].tolist() == [3, 6]


def test_nan_stays_in_its_row_through_a_merge(lib: Library, rng):
    logits = rng.normal(size=(3, 4))
    logits[1, 0] = np.nan
    array = lib.array(logits)
    state = sx.SoftmaxState.of(array[:, :2]).merge(sx.SoftmaxState.of(array[:, 2:]))
    assert np.isnan(lib.numpy(state.entropy)).tolist() == [False, True, False]


def test_any_axis_and_half_precision(lib: Library, rng):
    logits = rng.normal(size=(3, 4, 5))
    for axis in (0, 1, -1):
        state = sx.SoftmaxState.of(lib.array(logits), axis=axis)
        np.testing.assert_allclose(
            lib.numpy(state.entropy), sx.entropy(logits, axis=axis), rtol=1e-12
        )
    if lib.name != "strict":
        assert str(sx.SoftmaxState.of(lib.array(logits, "bfloat16")).max.dtype).endswith("float32")


def test_is_a_pytree_for_jax_scan(rng):
    blocks = jax.numpy.asarray(rng.normal(size=(6, 3, 16)))

    def step(state, block):
        return state.merge(sx.SoftmaxState.of(block)), None

    start = sx.SoftmaxState.of(blocks[0][:, :0])
    state, _ = jax.jit(lambda x: jax.lax.scan(step, start, x))(blocks)
    whole = np.moveaxis(np.asarray(blocks), 0, 1).reshape(3, -1)
    np.testing.assert_allclose(state.entropy, sx.entropy(whole), rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["log_sum_exp", "entropy", "max_weight", "effective_items", "spread"]
)
def test_gradients_through_a_merge(rng, name):
    def function(logits):
        left, right = sx.SoftmaxState.of(logits[:, :3]), sx.SoftmaxState.of(logits[:, 3:])
        return getattr(left.merge(right), name)

    assert torch.autograd.gradcheck(
        function, torch.tensor(rng.normal(size=(3, 8)), requires_grad=True)
    )


@pytest.mark.parametrize("rows", list(itertools.product([-math.inf, 0.0, math.inf], repeat=2)))
def test_no_nan_gradient_from_infinities(rows):
    leaf = torch.tensor(
        [[rows[0], 1.0], [rows[1], rows[0]]], dtype=torch.float64, requires_grad=True
    )
    state = sx.SoftmaxState.of(leaf[:, :1]).merge(sx.SoftmaxState.of(leaf[:, 1:]))
    (state.entropy + state.max_weight).sum().backward()
    assert torch.isfinite(leaf.grad).all()


def test_merging_something_else_is_refused():
    state = sx.SoftmaxState.of(np.zeros(3))
    with pytest.raises(TypeError, match="merge takes another SoftmaxState, got ndarray"):
        state.merge(np.zeros(3))
    with pytest.raises(TypeError, match="must come from one library"):
        state.merge(sx.SoftmaxState.of(torch.zeros(3)))
