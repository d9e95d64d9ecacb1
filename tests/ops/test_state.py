"""SoftmaxState: any split, any order, the same answer; infinities and empty pieces included."""

from __future__ import annotations

import functools
import itertools
import math

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from strategies import GENERATOR, WITHOUT_JAX

PROPERTIES = (
    "log_sum_exp", "entropy", "varentropy", "max", "min", "count", "max_weight", "effective_items", "spread",
)  # fmt: skip


def read(lib: Library, state: sx.SoftmaxState) -> dict[str, np.ndarray]:
    return {name: lib.numpy(getattr(state, name)) for name in PROPERTIES}


def merge_all(states):
    return functools.reduce(sx.SoftmaxState.merge, states)


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
        "varentropy": [
            np.cov(row, ddof=0, aweights=p) for row, p in zip(logits, weights, strict=True)
        ],
        "max": logits.max(-1),
        "min": logits.min(-1),
        "count": np.full(5, 13),
        "max_weight": weights.max(-1),
        "effective_items": np.exp(-(weights * np.log(weights)).sum(-1)),
        "spread": np.ptp(logits, axis=-1),
    }
    assert_same(read(lib, state), expected, rtol=1e-12)


@given(
    rng=GENERATOR,
    items=st.integers(1, 40),
    factor=st.floats(0.2, 5),
    library=WITHOUT_JAX,
    masked=st.booleans(),
)
def test_the_varentropy_is_how_fast_the_entropy_falls(rng, items, factor, library, masked):
    """dH / dlog b = -varentropy, at any inverse temperature b: from Proposition 3.2."""
    logits, step = rng.normal(size=(3, items)), 1e-4
    where = library.array(rng.random((3, items)) < 0.7, "bool") if masked else None

    def state(scale):
        return sx.SoftmaxState.of(library.array(scale * logits), where)

    low, high = (library.numpy(state(factor * np.exp(h)).entropy) for h in (-step, step))
    found = library.numpy(state(factor).varentropy)
    np.testing.assert_allclose((low - high) / (2 * step), found, rtol=1e-5, atol=1e-6)


def test_equal_weights_have_no_varentropy_and_nothing_overflows(quick: Library):
    """In float32 the square of a masked item's offset would be infinite, and its gradient NaN."""
    logits = np.array([[5.0, 5.0, -np.inf], [-np.inf] * 3, [np.inf, np.inf, 1.0], [1e30, 0, 0]])
    state = sx.SoftmaxState.of(quick.array(logits, "float32"))
    assert quick.numpy(state.varentropy).tolist() == [0, 0, 0, 0]


def test_the_gradient_of_the_varentropy_is_that_of_finite_differences(rng):
    logits = torch.tensor(rng.normal(size=(2, 7)), requires_grad=True)
    where = torch.tensor(rng.random((2, 7)) < 0.7)
    assert torch.autograd.gradcheck(lambda x: sx.SoftmaxState.of(x, where).varentropy, logits)
    single = logits.detach().float().masked_fill(~where, -torch.inf).requires_grad_()
    sx.SoftmaxState.of(single).varentropy.sum().backward()
    assert single.grad.isfinite().all()


LOGITS = st.floats(-30, 30) | st.sampled_from([math.inf, -math.inf])


@given(
    logits=st.lists(LOGITS, min_size=1, max_size=24).map(np.array),
    cuts=st.lists(st.integers(0, 24), max_size=5),
    rng=GENERATOR,
    library=WITHOUT_JAX,
)
def test_any_split_and_any_order(logits, cuts, rng, library):
    pieces = np.split(logits, sorted(min(cut, logits.size) for cut in cuts))  # some are empty
    rng.shuffle(pieces)
    states = [sx.SoftmaxState.of(library.array(piece)) for piece in pieces]
    whole = read(library, sx.SoftmaxState.of(library.array(logits)))
    assert_same(read(library, merge_all(states)), whole, rtol=1e-12, atol=1e-12)
    middle = len(states) // 2 + 1
    tree = merge_all(states[:middle])
    if states[middle:]:
        tree = tree.merge(merge_all(states[middle:]))
    assert_same(read(library, tree), whole, rtol=1e-12, atol=1e-12)


@jax.jit
def of_three_pieces(logits, owner):
    """The states of the items 0, 1 and 2 own; some may own nothing."""
    first, second, third = (sx.SoftmaxState.of(logits, owner == piece) for piece in range(3))
    whole = sx.SoftmaxState.of(logits)
    return [
        {name: getattr(state, name) for name in PROPERTIES}
        for state in (whole, first.merge(second).merge(third), third.merge(first.merge(second)))
    ]


@given(
    logits=st.lists(LOGITS | st.just(math.nan), min_size=12, max_size=12).map(np.array),
    owner=st.lists(st.integers(0, 2), min_size=12, max_size=12).map(np.array),
)
def test_any_split_of_a_jax_array(logits, owner):
    whole, left, right = of_three_pieces(jax.numpy.asarray(logits), jax.numpy.asarray(owner))
    assert_same(left, whole, rtol=1e-12, atol=1e-12)
    assert_same(right, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 5e-5)])
@given(library=WITHOUT_JAX, rng=GENERATOR, piece=st.sampled_from([7, 64, 1000]))
@settings(max_examples=15)
def test_large_offsets_lose_nothing(library, rng, dtype, tolerance, piece):
    """Logits near 1,000, seen in pieces: the entropy of what the type holds, to its own precision."""
    logits = library.array(rng.normal(size=(3, 1000)) * 2 + 1000.0, dtype)
    ours = merge_all(
        sx.SoftmaxState.of(logits[:, begin : min(begin + piece, 1000)])
        for begin in range(0, 1000, piece)
    )
    exact = sx.SoftmaxState.of(library.numpy(logits).astype(np.float64) - 1000.0)
    for name in ("entropy", "max_weight"):
        np.testing.assert_allclose(
            library.numpy(getattr(ours, name)), getattr(exact, name), atol=tolerance, rtol=0
        )


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


def test_the_state_of_nothing_is_neutral(quick: Library, rng):
    logits = quick.array(rng.normal(size=(4, 6)))
    state, nothing = sx.SoftmaxState.of(logits), sx.SoftmaxState.of(logits[:, :0])
    assert_same(read(quick, nothing.merge(state)), read(quick, state), rtol=0)
    assert_same(read(quick, state.merge(nothing)), read(quick, state), rtol=0)
    empty = read(quick, nothing.merge(nothing))
    expected = {"log_sum_exp": -math.inf, "max": -math.inf, "min": math.inf}
    for name in PROPERTIES:
        assert (empty[name] == expected.get(name, 0.0)).all(), name


def test_masked_rows_merge_as_nothing(quick: Library, rng):
    """A row that is masked in one piece must not weigh in: its log-sum-exp is -inf, not 0."""
    logits = rng.normal(size=(2, 6)) - 50.0
    where = np.ones((2, 6), bool)
    where[0, :3] = False
    array, mask = quick.array(logits), quick.array(where, "bool")
    pieces = [sx.SoftmaxState.of(array[:, :3], mask[:, :3]), sx.SoftmaxState.of(array[:, 3:])]
    ours = read(quick, merge_all(pieces))
    assert_same(ours, read(quick, sx.SoftmaxState.of(array, mask)), rtol=1e-12)
    assert ours["count"].tolist() == [3, 6]


def test_nan_stays_in_its_row_through_a_merge(quick: Library, rng):
    logits = rng.normal(size=(3, 4))
    logits[1, 0] = np.nan
    array = quick.array(logits)
    state = sx.SoftmaxState.of(array[:, :2]).merge(sx.SoftmaxState.of(array[:, 2:]))
    assert np.isnan(quick.numpy(state.entropy)).tolist() == [False, True, False]


def test_any_axis_and_half_precision(quick: Library, rng):
    logits = rng.normal(size=(3, 4, 5))
    for axis in (0, 1, -1):
        state = sx.SoftmaxState.of(quick.array(logits), axis=axis)
        np.testing.assert_allclose(
            quick.numpy(state.entropy), sx.entropy(logits, axis=axis), rtol=1e-12
        )
    if quick.name != "strict":
        assert str(sx.SoftmaxState.of(quick.array(logits, "bfloat16")).max.dtype).endswith(
            "float32"
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 5e-5)])
def test_is_a_pytree_for_jax_scan(rng, dtype, tolerance):
    """Near 1,000, where a sum that is not centred loses digits."""
    blocks = jax.numpy.asarray(rng.normal(size=(6, 3, 16)) * 2 + 1000.0, dtype)

    def step(state, block):
        return state.merge(sx.SoftmaxState.of(block)), None

    start = sx.SoftmaxState.of(blocks[0][:, :0])
    state, _ = jax.jit(lambda x: jax.lax.scan(step, start, x))(blocks)
    whole = np.moveaxis(np.asarray(blocks, np.float64), 0, 1).reshape(3, -1)
    np.testing.assert_allclose(state.entropy, sx.entropy(whole - 1000.0), atol=tolerance, rtol=0)


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
