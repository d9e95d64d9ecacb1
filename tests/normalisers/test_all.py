"""What every normaliser promises, stated once for all of them and on every array library."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from libraries import LIBRARIES, Library
from normalisers.slow import QUICKLY, ROWS, SLOW, by_row
from sharpmax import normalisers
from strategies import GARBAGE, GENERATOR, HALF_UNIT, LIBRARY, WITHOUT_JAX, dtypes_of

each = pytest.mark.parametrize("name", ROWS)

SHAPE = (4, 3, 13)
"""Of every example, the items last: JAX compiles for each shape anew."""


@functools.cache
def compiled(name: str) -> Callable:
    """For JAX: under jit and vmap, with the items on the second axis."""

    def weights(logits, where):
        return ROWS[name](logits, where=where, axis=0)

    return jax.jit(jax.vmap(weights), compiler_options=QUICKLY)


def weights_of(
    library: Library,
    name: str,
    logits: np.ndarray,
    where: Any = None,
    *,
    axis: int = -1,
    dtype: str = "float64",
) -> np.ndarray:
    """The weights, items last; `axis` is where the normaliser finds them, but for JAX the second."""
    axis = 1 if library.name == "jax" else axis
    array = library.array(np.moveaxis(logits, -1, axis), dtype)
    mask = np.ones(SHAPE) if where is None else np.broadcast_to(where, SHAPE)
    mask = library.array(np.moveaxis(mask, -1, axis), "bool")
    if library.name == "jax":
        weights = compiled(name)(array, mask)
    else:
        weights = ROWS[name](array, where=None if where is None else mask, axis=axis)
    assert library.owns(weights)
    assert weights.dtype == array.dtype
    return np.moveaxis(library.numpy(weights), axis, -1)


def example(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Logits of several scales, and a mask that leaves 2 items or more in each row."""
    logits = rng.normal(size=SHAPE) * np.array([0.3, 1.0, 2.0, 5.0])[:, None, None]
    where = rng.random(SHAPE) < 0.8
    where[..., :2] = True
    return logits, where


def padded(rows: list) -> np.ndarray:
    """Up to 4 rows of up to 13 items, the others -inf, three times each."""
    answer = np.full(SHAPE, -np.inf)
    for index, row in enumerate(rows):
        answer[index, :, : len(row)] = row
    return answer


def test_the_rows_are_all_but_those_that_say_so():
    others = {name for name, one in sx.NORMALISERS.items() if one.needs is not None}
    assert set(ROWS) | others == set(sx.NORMALISERS)
    assert others == {"selective", "differential", "thresholded-differential"}


@each
@given(
    library=LIBRARY,
    rng=GENERATOR,
    garbage=GARBAGE | st.none(),
    axis=st.sampled_from([0, 1, -2, 2, -1]),
)
@settings(max_examples=16)
def test_masking_is_truncation_and_truth_is_slow(name, library, rng, garbage, axis):
    """With a mask and anything at the masked items, or (None) with an additive mask alone."""
    logits, where = example(rng)
    filled = np.where(where, logits, -np.inf if garbage is None else garbage)
    ours = weights_of(library, name, filled, None if garbage is None else where, axis=axis)
    expected = by_row(SLOW[name], logits, where)
    # The slow roots are good to 1e-15 in the threshold, which a power of 2 at most doubles.
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=2e-14)


def check_precision(library: Library, name: str, rng: np.random.Generator, dtype: str) -> None:
    logits = library.numpy(library.array(rng.normal(size=SHAPE) * 3, dtype)).astype(np.float64)
    ours = weights_of(library, name, logits, dtype=dtype).astype(np.float64)
    exact = by_row(SLOW[name], logits, np.ones(SHAPE, bool))
    # Rounding the answer once; and float32 inside, where exponents of up to 4 * 25 (the factor of
    # 1 + log n on the widest logits) carry a rounding each way, and sums of 13 terms add theirs.
    inside = (2 * 100 + 13) * HALF_UNIT["float32"]
    error = np.abs(ours - exact)
    assert (error <= np.abs(exact) * (1.01 * HALF_UNIT[dtype] + inside) + inside / 8).all()


def check_extremes(library: Library, name: str) -> None:
    largest = 65504.0
    rows = [[largest, -largest, 0.0, 1.0], [largest] * 4, [-largest] * 4, [0.0] * 4]
    ours = weights_of(library, name, padded(rows), dtype="float16").astype(np.float64)
    assert np.isfinite(ours).all()
    if ROWS[name].sums_to_one:
        np.testing.assert_allclose(ours.sum(-1), 1, atol=4 * 2**-11)


@each
@given(library=WITHOUT_JAX, rng=GENERATOR, choice=st.integers(0, 2))
@settings(max_examples=8)
def test_keeps_the_type_and_computes_in_single_precision(name, library, rng, choice):
    below_double = dtypes_of(library)[:-1]
    check_precision(library, name, rng, below_double[choice % len(below_double)])


@each
def test_extreme_half_precision_has_no_nan(name):
    for library in LIBRARIES:
        if library.name in ("numpy", "torch"):
            check_extremes(library, name)


@pytest.mark.slow
@each
def test_half_precision_of_jax(rng, name):
    library = next(library for library in LIBRARIES if library.name == "jax")
    check_precision(library, name, rng, "float16")
    check_extremes(library, name)


@each
def test_rows_without_items_are_zero(lib: Library, name):
    where = np.ones(SHAPE, bool)
    where[2:] = False
    ours = weights_of(lib, name, padded([[1.0, 2.0, 0.5], [], [np.nan, 1.0, 2.0], [4.0]]), where)
    assert (ours[1:] == 0).all()
    assert (ours[0] != 0).any()
    assert ROWS[name](lib.array(np.zeros((3, 0)))).shape == (3, 0)


@each
def test_one_item(lib: Library, name):
    values = [2.5, -123.0, 0.0, 1e-3]
    alone = weights_of(lib, name, padded([[value] for value in values]))[:, 0, 0]
    expected = [SLOW[name](np.array([value]))[0] for value in values]
    np.testing.assert_allclose(alone, expected, rtol=1e-12, atol=1e-300)


@each
def test_nan_spoils_its_own_row(lib: Library, rng, name):
    logits, _ = example(rng)
    logits[1, 2, 4] = np.nan
    ours = weights_of(lib, name, logits)
    assert np.isnan(ours[1, 2]).all()
    others = np.ones(SHAPE[:2], bool)
    others[1, 2] = False
    clean = by_row(SLOW[name], logits[others], np.ones((11, 13), bool))
    np.testing.assert_allclose(ours[others], clean, rtol=1e-12, atol=2e-14)


INFINITE = {
    "hard": [1, 0, 0, 0],
    "sigmoid": [1, 1 / (1 + 3 * np.exp(-1)), 1, 0],
    "relu": [np.inf, 1 / 3, np.inf, 0],
    "linear": [np.inf, 1 / 3, np.inf, 0],
    "stick-breaking": [0, 0, 1, 0],
}


@each
def test_infinite_logits_share_the_mass(lib: Library, name):
    """Or what the method makes of them, if it shares nothing out."""
    finite = np.array([0.5, 1.0, 2.0, 3.0])
    logits = padded([[np.inf, 1.0, np.inf, -np.inf], finite])
    ours = weights_of(lib, name, logits)[:, 1, :4]
    np.testing.assert_allclose(ours[0], INFINITE.get(name, [0.5, 0, 0.5, 0]), atol=1e-12)
    np.testing.assert_allclose(ours[1], SLOW[name](finite), rtol=1e-12, atol=2e-14)


@each
def test_traits_are_what_is_measured(rng, name):
    """Each trait both ways: what it claims holds, and what it denies can be seen not to."""
    normaliser, logits = ROWS[name], rng.normal(size=(20, 40)) * 3
    logits[0] = -np.abs(logits[0])  # nothing passes a threshold
    weights, order = normaliser(logits), rng.permutation(40)
    assert (np.abs(weights.sum(-1) - 1).max() < 1e-12) == normaliser.sums_to_one
    assert (weights == 0).any() == normaliser.sparse
    if name == "threshold-relative":  # only its slope looks at the order
        sloping = normalisers.ThresholdRelative(slope=0.1)
        moved = np.abs(sloping(logits[:, order]) - sloping(logits)[:, order]).max()
    else:
        moved = np.abs(normaliser(logits[:, order]) - weights[:, order]).max()
    assert (moved > 1e-6) == normaliser.order_dependent
    assert (np.abs(normaliser(logits + 2.0) - weights).max() > 1e-6) != normaliser.shift_invariant


@pytest.mark.parametrize(
    "name",
    [
        "stick-breaking",
        pytest.param("sparsemax", marks=pytest.mark.slow),
        pytest.param("stieltjes", marks=pytest.mark.slow),
    ],
)
def test_jax_one_operation_at_a_time(rng, name):
    logits, where = example(rng)
    ours = ROWS[name](jax.numpy.asarray(logits), where=jax.numpy.asarray(where))
    np.testing.assert_allclose(ours, by_row(SLOW[name], logits, where), rtol=1e-12, atol=2e-14)


@each
def test_long_rows_in_single_precision(rng, name):
    """20,000 items."""
    logits = rng.normal(size=(2, 20_000)).astype(np.float32) * 4
    exact = by_row(SLOW[name], logits.astype(np.float64), np.ones(logits.shape, bool))
    for ours in (ROWS[name](logits), ROWS[name](torch.tensor(logits)).numpy()):
        # Running sums of 20,000 terms: as many roundings at the worst, a hundredth of it here.
        np.testing.assert_allclose(ours, exact, rtol=2e-4, atol=1e-6)


@each
def test_normalisers_are_values(name):
    one = ROWS[name]
    assert one == dataclasses.replace(one)
    assert hash(one) == hash(dataclasses.replace(one))
    assert eval(repr(one), vars(normalisers) | vars(sx)) == one
    if dataclasses.fields(one):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, dataclasses.fields(one)[0].name, 3)


@each
def test_serves_attention(rng, name):
    from sharpmax.torch import scaled_dot_product_attention

    query, key, value = (torch.tensor(rng.normal(size=(1, 2, 6, 4))) for _ in range(3))
    output = scaled_dot_product_attention(query, key, value, is_causal=True, normaliser=ROWS[name])
    logits = (query @ key.transpose(-1, -2) / 2).numpy()
    weights = by_row(SLOW[name], logits, np.broadcast_to(np.tri(6, dtype=bool), logits.shape))
    np.testing.assert_allclose(output, weights @ value.numpy(), rtol=1e-9, atol=1e-12)


BAD = [
    (lambda n: n.Entmax(alpha=0.9), ValueError, r"alpha must be a finite number from 1 \(softmax\) up, got 0.9"),
    (lambda n: n.Entmax(alpha=np.inf), ValueError, "alpha must be a finite number .* got inf"),
    (lambda n: n.AdaptiveScalableEntmax(alpha=0.5), ValueError, "alpha must be a finite .* got 0.5"),
    (lambda n: n.AdaptiveScalableEntmax(exponent=np.nan), ValueError, "exponent must be a finite number, got nan"),
    (lambda n: n.ScalableSoftmax(scale=np.inf), ValueError, "scale must be a finite number, got inf"),
    (lambda n: n.SoftmaxPlusOne(sink=np.nan), ValueError, "sink must be a logit, .* got nan"),
    (lambda n: n.TopK(k=0), ValueError, "k must be the number of items to keep, an integer of 1 or more, got 0"),
    (lambda n: n.TopK(k=2.0), ValueError, "an integer of 1 or more, got 2.0"),
    (lambda n: n.Local(window=True), ValueError, "window must be a number of items, .* got True"),
    (lambda n: n.Relu(power=-1), ValueError, "power must be a finite number from 0 up, got -1"),
    (lambda n: n.Stieltjes(power=0), ValueError, "power must be a positive finite number, got 0"),
    (lambda n: n.Sigmoid(bias=np.nan), ValueError, "bias must be a finite number, got nan"),
    (lambda n: n.ThresholdRelative(slope=np.inf), ValueError, "slope must be a finite number, got inf"),
    (lambda n: n.QueryAwareScalableSoftmax(modulation=np.nan), ValueError, "modulation must be a finite number, got nan"),
    (lambda n: n.ScaleInvariant(tau=0), ValueError, "tau must be a positive finite number, got 0"),
    (lambda n: n.ThresholdedDifferential(power=0.5), ValueError, "power must be a finite number from 1 up, got 0.5"),
    (lambda n: n.ThresholdedDifferential(threshold=np.inf), ValueError, "threshold must be a finite number, got inf"),
    (lambda n: n.Differential(second_weight=np.inf), ValueError, "second_weight must be a finite number"),
    (lambda n: n.ScalableSoftmax(scale=[1.0])(np.zeros(3)), TypeError, "scale must be a NumPy, PyTorch or JAX"),
    (lambda n: n.ScalableSoftmax(scale=torch.ones(1))(np.zeros(3)), TypeError, "one library, got logits from numpy, scale from torch"),
    (lambda n: n.Sigmoid(bias=np.ones(3))(np.zeros((2, 3))), ValueError, r"bias of shape \(3,\) must have length 1 on the item axis"),
    (lambda n: n.Sigmoid(bias=np.ones((4, 1)))(np.zeros((2, 3))), ValueError, "one bias per row"),
    (lambda n: n.Entmax(alpha=np.full(1, 2))(np.zeros(3)), TypeError, "alpha must have a floating type .* got int64"),
    (lambda n: n.Sparsemax()([1.0]), TypeError, "logits must be a NumPy, PyTorch or JAX array, got list"),
    (lambda n: n.Sparsemax()(np.zeros(3), axis=1), ValueError, "axis 1 is out of range"),
    (lambda n: n.Normaliser()(np.zeros(3)), NotImplementedError, "Normaliser must define __call__"),
    (lambda n: n.RowNormaliser()(np.zeros(3)), NotImplementedError, r"RowNormaliser must define weights\(rows\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_gets_one_clear_sentence(call, kind, message):
    with pytest.raises(kind, match=message) as caught:
        call(normalisers)
    assert "\n" not in str(caught.value)
