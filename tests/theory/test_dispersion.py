"""Lemma 2.1: the bounds and the minimum entropy hold for all logits and are attained by some."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from sharpmax import theory

LOGITS = st.lists(st.floats(-20, 20), min_size=1, max_size=40).map(np.array)


@given(LOGITS, st.floats(0.05, 20))
def test_bounds_hold(logits, temperature):
    weights = sx.softmax(logits, temperature=temperature)
    low, high = theory.weight_bounds(logits.size, float(np.ptp(logits)), temperature)
    wide_low, wide_high = theory.paper_weight_bounds(
        logits.size, float(np.ptp(logits)), temperature
    )
    slack = 1 + 1e-9
    assert wide_low <= low * slack
    assert low <= weights.min() * slack + 1e-300
    assert weights.max() <= high * slack
    assert high <= wide_high * slack


@given(st.integers(1, 500), st.floats(0, 30), st.floats(0.1, 10))
def test_bounds_are_attained(count, spread, temperature):
    low, high = theory.weight_bounds(count, spread, temperature)
    top = np.zeros(count)
    top[0] = spread
    bottom = np.full(count, spread)
    bottom[0] = 0.0
    if count == 1:
        assert (low, high) == (1.0, 1.0)
    assert sx.softmax(top, temperature=temperature)[0] == pytest.approx(high, rel=1e-9)
    assert sx.softmax(bottom, temperature=temperature)[0] == pytest.approx(low, rel=1e-9)


def test_the_printed_bounds_are_those_of_the_lemma():
    low, high = theory.paper_weight_bounds(100, 2.0, 0.5)
    assert (low, high) == (pytest.approx(math.exp(-4) / 100), pytest.approx(math.exp(4) / 100))


def test_both_forms_agree_for_many_items():
    tight, printed = theory.weight_bounds(10**9, 3.0), theory.paper_weight_bounds(10**9, 3.0)
    np.testing.assert_allclose(tight, printed, rtol=1e-6)
    assert theory.weight_bounds(4, 3.0)[1] < 0.9 < 5 < theory.paper_weight_bounds(4, 3.0)[1]


@pytest.mark.parametrize("spread", [1e3, 1e300])
def test_no_overflow(lib: Library, spread):
    low, high = theory.weight_bounds(lib.array([1.0, 2.0, 1e9]), spread)
    assert lib.numpy(high).tolist() == [1.0, 1.0, 1.0]
    assert lib.numpy(low)[0] == 1.0
    assert (lib.numpy(low)[1:] < 1e-300).all()
    assert theory.paper_weight_bounds(2, spread)[1] == math.inf
    assert theory.paper_weight_bounds(1e20, 720.0)[1] == pytest.approx(
        math.exp(720 - 20 * math.log(10))
    )


def test_arrays_broadcast_and_keep_their_library(lib: Library):
    counts = lib.array([[2], [50]], "int64")
    low, high = theory.weight_bounds(counts, lib.array([0.5, 1.0, 2.0]))
    assert lib.owns(low)
    assert lib.owns(high)
    for row, count in enumerate([2, 50]):
        for column, spread in enumerate([0.5, 1.0, 2.0]):
            expected = theory.weight_bounds(count, spread)
            assert lib.numpy(low)[row, column] == pytest.approx(expected[0], rel=1e-12)
            assert lib.numpy(high)[row, column] == pytest.approx(expected[1], rel=1e-12)


@given(st.floats(0, 20), st.floats(1e-4, 1), st.floats(0.5, 5))
def test_items_until_dispersed_is_the_first(spread, epsilon, temperature):
    first = theory.items_until_dispersed(spread, epsilon, temperature)
    assert first == int(first)
    rounding = 1e-12
    assert theory.weight_bounds(first, spread, temperature)[1] < epsilon * (1 + rounding)
    assert theory.weight_bounds(first - 1, spread, temperature)[1] >= epsilon * (1 - rounding)
    # "n > exp(spread / temperature) / epsilon" of the printed lemma is later.
    assert first <= theory.paper_items_until_dispersed(spread, epsilon, temperature) + 1


@pytest.mark.parametrize(
    ("spread", "epsilon", "first"),
    [(0, 0.5, 3), (0, 1.0, 2), (0, 0.1, 11), (0, 0.01, 101), (math.log(2), 0.5, 4)],
)
def test_items_until_dispersed_by_hand(lib: Library, spread, epsilon, first):
    assert theory.items_until_dispersed(spread, epsilon) == first
    ours = theory.items_until_dispersed(lib.array([float(spread)]), lib.array([epsilon]))
    assert lib.numpy(ours).tolist() == [first]


def test_an_enormous_spread_never_disperses():
    assert theory.items_until_dispersed(1e4, 0.1) == math.inf
    assert theory.paper_items_until_dispersed(1e4, 0.1) == math.inf


def test_array_entries_outside_the_domain_are_nan(lib: Library):
    low, high = theory.weight_bounds(lib.array([0.0, 5.0, 5.0]), lib.array([1.0, -1.0, 1.0]))
    assert np.isnan(lib.numpy(high)).tolist() == [True, True, False]
    assert np.isnan(lib.numpy(low)).tolist() == [True, True, False]
    items = theory.items_until_dispersed(lib.array([1.0, 1.0]), lib.array([2.0, 0.5]))
    assert np.isnan(lib.numpy(items)).tolist() == [True, False]


def two_level(count: int, top: int, spread: float) -> np.ndarray:
    row = np.zeros(count)
    row[:top] = spread
    return row


@given(st.lists(st.floats(-15, 15), min_size=1, max_size=40).map(np.array), st.floats(0.1, 10))
def test_no_entropy_goes_below_the_minimum(logits, temperature):
    least = theory.minimum_entropy(logits.size, float(np.ptp(logits)), temperature)
    assert sx.entropy(logits, temperature=temperature) >= least - 1e-9


@given(st.integers(1, 60), st.floats(0, 12), st.floats(0.3, 4))
def test_the_minimum_is_that_of_the_best_two_level_row(count, spread, temperature):
    by_hand = min(
        float(sx.entropy(two_level(count, top, spread), temperature=temperature))
        for top in range(1, count + 1)
    )
    ours = theory.minimum_entropy(count, spread, temperature)
    assert ours == pytest.approx(by_hand, abs=1e-9)


def test_one_item_at_the_top_is_not_always_best():
    """With many items and little spread, several at the top are sharper than one."""
    alone = float(sx.entropy(two_level(1000, 1, 2.0)))
    assert theory.minimum_entropy(1000, 2.0) < alone - 0.1


def test_the_minimum_grows_like_log_n():
    counts = 2.0 ** np.arange(4, 40)
    least = theory.minimum_entropy(counts, 3.0)
    steps = np.diff(least)
    np.testing.assert_allclose(steps[-10:], math.log(2), rtol=1e-9)
    assert (steps > 0).all()


@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-6])
def test_equal_logits_have_the_entropy_of_uniform_weights(lib: Library, spread):
    ours = theory.minimum_entropy(lib.array([1.0, 2.0, 1e6]), spread)
    np.testing.assert_allclose(lib.numpy(ours), np.log([1.0, 2.0, 1e6]), atol=1e-9)


def test_a_huge_spread_allows_an_entropy_of_zero(lib: Library):
    assert lib.numpy(theory.minimum_entropy(lib.array([50.0]), 1e4)).item() == 0.0


BAD = [
    (lambda: theory.weight_bounds(0, 1.0), "count must be at least 1 item, got 0"),
    (lambda: theory.weight_bounds(3, -1.0), "spread .* must be finite and at least 0, got -1.0"),
    (lambda: theory.weight_bounds(3, math.inf), "spread .* got inf"),
    (lambda: theory.weight_bounds(3, 1.0, 0.0), "temperature must be a positive finite number"),
    (
        lambda: theory.items_until_dispersed(1.0, 0.0),
        "epsilon must be a weight above 0 and at most 1",
    ),
    (lambda: theory.items_until_dispersed(1.0, 1.5), "got 1.5"),
    (lambda: theory.minimum_entropy(0.5, 1.0), "count must be at least 1"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_gets_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@given(
    LOGITS.filter(lambda logits: logits.size > 1),
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 5),
    st.floats(1e-6, 0.9),
)
def test_an_exchanged_item_changes_no_output_by_more_than_allowed(logits, seed, temperature, share):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((logits.size + 1, 3))
    spread, diameter = float(np.ptp(logits)), np.linalg.norm(values[:, None] - values, axis=2).max()
    other = logits.copy()
    other[0] = generator.uniform(logits.min(), logits.max())
    before = sx.softmax(logits, temperature=temperature) @ values[1:]
    after = sx.softmax(other, temperature=temperature) @ np.vstack([values[:1], values[2:]])
    top = theory.weight_bounds(logits.size, spread, temperature)[1]
    change = np.linalg.norm(after - before)
    assert change <= top * diameter * (1 + 1e-9) + 1e-12
    if logits.size >= theory.items_until_ignored(spread, diameter, share * diameter, temperature):
        assert change < share * diameter * (1 + 1e-9) + 1e-12


@given(st.integers(2, 300), st.floats(0, 12))
def test_the_change_is_attained(count, spread):
    """One item at the top of the logits; its value leaves the others' mean by the diameter."""
    logits = np.append(spread, np.zeros(count - 1))
    values = np.append(1.0, np.zeros(count - 1))
    change = sx.softmax(logits) @ values  # the item exchanged for one like the others gives 0
    bound = theory.weight_bounds(count, spread)[1]
    assert change == pytest.approx(bound, rel=1e-9)
    items = theory.items_until_ignored(spread, 1.0, change * (1 + 1e-6))
    assert items <= count < theory.items_until_ignored(spread, 1.0, change * (1 - 1e-6))


def test_when_items_are_ignored(lib: Library):
    assert theory.items_until_ignored(5.0, 2.0, 0.2) == theory.items_until_dispersed(5.0, 0.1)
    assert theory.items_until_ignored(5.0, 2.0, 2.0) == 1.0  # never seen at all
    assert theory.items_until_ignored(800.0, 1.0, 1e-7) == math.inf
    items = theory.items_until_ignored(lib.array([5.0, 1.0]), 2.0, lib.array([0.2, 3.0]))
    assert lib.numpy(items).tolist() == [theory.items_until_dispersed(5.0, 0.1), 1.0]
    assert np.isnan(lib.numpy(theory.items_until_ignored(lib.array([5.0]), lib.array([0.0]), 1.0)))
    with pytest.raises(ValueError, match="diameter"):
        theory.items_until_ignored(5.0, 0.0, 0.1)
    with pytest.raises(ValueError, match="resolution"):
        theory.items_until_ignored(5.0, 1.0, -0.1)
