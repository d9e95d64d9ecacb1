"""softmax: a weight for every item, masks as truncation, and no row spoiling another."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from strategies import GARBAGE, GENERATOR, HALF_UNIT, LIBRARY, dtypes_of


@given(
    library=LIBRARY,
    rng=GENERATOR,
    axis=st.sampled_from([-1, 0, 1]),
    temperature=st.floats(0.1, 30) | st.just(1.0),
)
@settings(max_examples=60)
def test_equals_scipy_on_any_axis(library, rng, axis, temperature):
    logits = rng.normal(size=(3, 5, 7)) * 4
    ours = sx.softmax(library.array(logits), temperature=temperature, axis=axis)
    assert library.owns(ours)
    expected = scipy.special.softmax(logits / temperature, axis=axis)
    np.testing.assert_allclose(library.numpy(ours), expected, rtol=1e-12, atol=0)


def test_keeps_the_type_and_rounds_once(quick: Library, rng):
    for dtype in dtypes_of(quick):
        logits = quick.array(rng.normal(size=(4, 33)) * 3, dtype)
        ours = sx.softmax(logits)
        assert ours.dtype == logits.dtype
        exact = scipy.special.softmax(quick.numpy(logits).astype(np.float64), axis=-1)
        # Half precision is computed in float32, so rounding the answer is all that is lost.
        error = np.abs(quick.numpy(ours).astype(np.float64) - exact)
        unit = HALF_UNIT[dtype] * 1.01 + 40 * HALF_UNIT["float32"]
        assert (error <= exact * unit + 2**-25).all()


def test_does_not_depend_on_a_shift_or_an_order(quick: Library, rng):
    logits = rng.normal(size=(4, 9)) * 5
    order = rng.permutation(9)
    plain = quick.numpy(sx.softmax(quick.array(logits)))
    shifted = quick.numpy(sx.softmax(quick.array(logits + 1000.0)))
    shuffled = quick.numpy(sx.softmax(quick.array(logits[:, order])))
    np.testing.assert_allclose(shifted, plain, rtol=1e-11)
    np.testing.assert_allclose(shuffled, plain[:, order], rtol=1e-12)


@given(library=LIBRARY, rng=GENERATOR, garbage=GARBAGE)
@settings(max_examples=60)
def test_masking_is_truncation(library, rng, garbage):
    logits = rng.normal(size=(6, 11)) * 3
    where = rng.random((6, 11)) < 0.6
    where[0] = False
    filled = np.where(where, logits, garbage)
    ours = library.numpy(sx.softmax(library.array(filled), where=library.array(where, "bool")))
    for row, keep, weights in zip(logits, where, ours, strict=True):
        if not keep.any():
            assert (weights == 0).all()
            continue
        np.testing.assert_allclose(weights[keep], scipy.special.softmax(row[keep]), rtol=1e-12)
        assert (weights[~keep] == 0).all()


def test_one_row_under_several_masks(quick: Library, rng):
    logits = rng.normal(size=8)
    lengths = np.array([1, 3, 8])
    where = np.arange(8) < lengths[:, None]
    ours = quick.numpy(sx.softmax(quick.array(logits), where=quick.array(where, "bool")))
    for length, weights in zip(lengths, ours, strict=True):
        np.testing.assert_allclose(weights[:length], scipy.special.softmax(logits[:length]))


def test_a_mask_of_whole_rows(quick: Library, rng):
    logits = rng.normal(size=(3, 4))
    ours = quick.numpy(
        sx.softmax(quick.array(logits), where=quick.array([[True], [False], [True]], "bool"))
    )
    np.testing.assert_allclose(ours.sum(axis=-1), [1, 0, 1])


def test_first_axis_with_a_mask_that_adds_rows(quick: Library, rng):
    logits = rng.normal(size=(5, 2))
    where = rng.random((3, 5, 2)) < 0.7
    ours = quick.numpy(sx.softmax(quick.array(logits), where=quick.array(where, "bool"), axis=0))
    assert ours.shape == (3, 5, 2)
    np.testing.assert_allclose(ours.sum(axis=1), where.any(axis=1).astype(float))


def test_a_temperature_for_each_row(quick: Library, rng):
    logits, temperature = rng.normal(size=(3, 4)), np.array([[0.5], [1.0], [20.0]])
    ours = quick.numpy(sx.softmax(quick.array(logits), temperature=quick.array(temperature)))
    np.testing.assert_allclose(
        ours, scipy.special.softmax(logits / temperature, axis=-1), rtol=1e-12
    )


def test_a_temperature_that_is_not_positive_spoils_its_row_only(quick: Library, rng):
    temperature = quick.array(np.array([[1.0], [0.0], [-1.0], [2.0]]))
    ours = quick.numpy(sx.softmax(quick.array(rng.normal(size=(4, 3))), temperature=temperature))
    assert np.isnan(ours).all(axis=-1).tolist() == [False, True, True, False]


def test_rows_without_items_are_zero(quick: Library):
    logits = np.array([[1.0, 2.0], [-np.inf, -np.inf], [5.0, -np.inf]])
    ours = quick.numpy(sx.softmax(quick.array(logits)))
    np.testing.assert_allclose(ours[1:], [[0, 0], [1, 0]])
    assert sx.softmax(quick.array(np.zeros((3, 0)))).shape == (3, 0)


def test_infinite_logits_share_the_mass(quick: Library):
    logits = np.array([[np.inf, 3.0, np.inf, -np.inf], [0.0, 1.0, 2.0, 3.0]])
    ours = quick.numpy(sx.softmax(quick.array(logits)))
    np.testing.assert_allclose(ours[0], [0.5, 0, 0.5, 0])
    np.testing.assert_allclose(ours[1], scipy.special.softmax(logits[1]))


def test_nan_stays_in_its_row(quick: Library, rng):
    logits = rng.normal(size=(3, 4))
    logits[1, 2] = np.nan
    ours = quick.numpy(sx.softmax(quick.array(logits)))
    assert np.isnan(ours[1]).all()
    np.testing.assert_allclose(ours[[0, 2]], scipy.special.softmax(logits[[0, 2]], axis=-1))


def test_one_item_has_all(quick: Library):
    assert quick.numpy(sx.softmax(quick.array([[-123.0]]))).item() == 1.0


def test_stays_on_the_device():
    logits = torch.empty(3, 5, device="meta", dtype=torch.bfloat16)
    where = torch.empty(3, 5, device="meta", dtype=torch.bool)
    for weights in (
        sx.softmax(logits, where=where),
        sx.adaptive_temperature_softmax(logits, where=where),
        sx.adaptive_temperature_softmax(logits, policy=sx.Saturating(sx.PAPER)),
        sx.adaptive_temperature_softmax(logits, policy=sx.LogLength(4)),
    ):
        assert weights.device.type == "meta"
        assert weights.dtype == torch.bfloat16


FUNCTIONS = {
    "softmax": lambda x, **options: sx.softmax(x, temperature=0.7, **options),
    "adaptive": sx.adaptive_temperature_softmax,
    "saturating": lambda x, **options: sx.adaptive_temperature_softmax(
        x, policy=sx.Saturating(sx.PAPER), **options
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_finite_differences(rng, name):
    # Entropies between 1 and 2.4 nats: the adaptive branch is active and its gradient counts.
    logits = rng.normal(size=(4, 11))
    where = rng.random((4, 11)) < 0.8
    function = FUNCTIONS[name]
    mask = torch.tensor(where)
    leaf = torch.tensor(logits, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: function(x, where=mask), leaf)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ties_at_the_top_have_a_gradient(name):
    leaf = torch.tensor([[2.0, 2.0, 1.0, 0.0, 0.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(FUNCTIONS[name], leaf)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_nan_reaches_a_gradient(name):
    """Masked NaN, additive -inf, rows of nothing and +inf: the gradient is finite, and 0 there."""
    inf, nan = np.inf, np.nan
    logits = np.array(
        [[1.0, 2.0, nan, 1.5], [-inf, 0.0, 1.0, -inf], [-inf] * 4, [inf, 1.0, 2.0, 0.0]]
    )
    where = np.array([[True, True, False, True], [True] * 4, [True] * 4, [True] * 4])
    function = FUNCTIONS[name]
    leaf = torch.tensor(logits, requires_grad=True)
    (function(leaf, where=torch.tensor(where)) ** 2).sum().backward()
    compiled = jax.jit(jax.grad(lambda x: (function(x, where=jax.numpy.asarray(where)) ** 2).sum()))
    theirs = compiled(logits)
    np.testing.assert_allclose(leaf.grad.numpy(), theirs, atol=1e-12)
    assert np.isfinite(theirs).all()
    assert (np.asarray(theirs)[0, 2], *np.asarray(theirs)[2:].ravel()) == (0.0,) * 9
    assert np.abs(np.asarray(theirs)[:2]).max() > 0.01


BAD = [
    (lambda x: sx.softmax([1.0, 2.0]), TypeError, "logits must be a NumPy, PyTorch or JAX array, got list"),
    (lambda x: sx.softmax(np.arange(3)), TypeError, "logits must have a floating type .* got int64; cast it"),
    (lambda x: sx.softmax(x, axis=2), ValueError, r"axis 2 is out of range for logits of shape \(2, 3\): "),
    (lambda x: sx.softmax(x, axis=-3), ValueError, "expected -2 to 1"),
    (lambda x: sx.softmax(np.float64(1)), ValueError, "it has no axis"),
    (lambda x: sx.softmax(x, axis=(0, 1)), TypeError, r"axis must be one integer, got \(0, 1\)"),
    (lambda x: sx.softmax(x, temperature=-1.0), ValueError, "temperature must be a positive finite number"),
    (lambda x: sx.softmax(x, temperature=0), ValueError, "temperature must be a positive .* got 0"),
    (lambda x: sx.softmax(x, temperature=1e-320), ValueError, "too small: its inverse is not finite"),
    (lambda x: sx.softmax(x, temperature=np.ones(3)), ValueError, "must have length 1 on the item axis"),
    (lambda x: sx.softmax(x, temperature=[1.0]), TypeError, "temperature must be a NumPy, PyTorch or JAX"),
    (lambda x: sx.softmax(x, where=np.ones((3, 2), bool)), ValueError, r"where of shape \(3, 2\) does not"),
    (lambda x: sx.softmax(x[:, :1], where=np.ones((2, 3), bool)), ValueError, "does not fit logits"),
    (lambda x: sx.softmax(x, where=np.zeros((2, 3))), TypeError, "where must be boolean .* additive mask"),
    (lambda x: sx.softmax(x, where=torch.ones(2, 3).bool()), TypeError, "one library, got logits from numpy"),
    (
        lambda x: sx.adaptive_temperature_softmax(x, policy=lambda h, n: np.ones(5)),
        ValueError,
        r"the policy returned shape \(5,\) for entropies of shape \(2,\)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_gets_one_clear_sentence(call, kind, message):
    with pytest.raises(kind, match=message) as caught:
        call(np.zeros((2, 3)))
    assert "\n" not in str(caught.value)


@given(
    lib=LIBRARY,
    temperature=st.sampled_from([1e15, 1e16, 1e17, 1e20, 1e30]),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=40)
def test_masked_items_stay_out_at_any_temperature(lib, temperature, dtype):
    logits, where = (
        lib.array([[0.0, 1.0, 2.0, -np.inf]], dtype),
        lib.array([[True, True, False, True]], "bool"),
    )
    rows = lib.array([[temperature]], dtype)
    for warmth in (temperature, rows):
        weights = lib.numpy(sx.softmax(logits, where=where, temperature=warmth))
        np.testing.assert_allclose(weights, [[0.5, 0.5, 0.0, 0.0]], rtol=1e-6)
        nats = lib.numpy(sx.entropy(logits, where=where, temperature=warmth))
        np.testing.assert_allclose(nats, [np.log(2)], rtol=1e-6)
    policy = sx.Constant(1 / temperature)
    flat = lib.numpy(sx.adaptive_temperature_softmax(logits, where=where, policy=policy))
    np.testing.assert_allclose(flat, [[0.5, 0.5, 0.0, 0.0]], rtol=1e-6)


def test_compiled_gradients_keep_the_top_item(rng):
    """A compiler may round a logit otherwise than the maximum it was compared with."""
    left, right, moved = (jax.numpy.asarray(rng.normal(size=(4, 9, 3))) for _ in range(3))

    @jax.jit
    def attend(left):
        logits = jax.numpy.einsum("htd,hsd->hts", left, right) * 0.577
        weights = sx.softmax(logits), sx.adaptive_temperature_softmax(logits)
        outputs = [jax.numpy.einsum("hts,hsd->htd", weight, right) for weight in weights]
        return jax.numpy.concat([*outputs, sx.entropy(logits)[..., None]], axis=-1)

    step = 1e-6
    expected = (attend(left + step * moved) - attend(left - step * moved)) / (2 * step)
    forward = jax.jit(lambda left: jax.jvp(attend, (left,), (moved,))[1])
    np.testing.assert_allclose(forward(left), expected, rtol=0, atol=1e-7)
    for column in range(expected.shape[-1]):  # a wrong sign in one must not hide behind another
        weight = np.zeros(expected.shape)
        weight[..., column] = rng.normal(size=expected.shape[:-1])
        _, back = jax.vjp(attend, left)
        np.testing.assert_allclose(
            (back(jax.numpy.asarray(weight))[0] * moved).sum(), (expected * weight).sum(), atol=1e-6
        )


def test_special_rows_of_jax_are_those_of_numpy():
    """Under jit: no items, infinities, NaN, masked NaN, the lowest number, a far one, ties."""
    inf, nan, lowest = np.inf, np.nan, np.finfo(np.float64).min
    logits = np.array(
        [
            [1.0, 2.0, 0.5, -1.0],
            [-inf, -inf, -inf, -inf],
            [inf, 3.0, inf, -inf],
            [nan, 1.0, 2.0, 0.0],
            [2.0, 1.0, nan, 0.0],
            [1.0, lowest, 0.5, lowest],
            [0.0, -1e30, -1.0, 0.0],
            [1e30, 1e30, 0.0, 1.0],
        ]
    )
    where = np.ones(logits.shape, bool)
    where[4, 2] = False

    def everything(logits, where):
        return (
            sx.softmax(logits, where=where, temperature=0.7),
            sx.entropy(logits, where=where),
            sx.adaptive_temperature_softmax(logits, where=where),
            sx.adaptive_temperature_softmax(logits, where=where, policy=sx.LogLength(3)),
            sx.SoftmaxState.of(logits, where).max_weight,
        )

    theirs = jax.jit(everything)(jax.numpy.asarray(logits), jax.numpy.asarray(where))
    for ours, its in zip(everything(logits, where), theirs, strict=True):
        np.testing.assert_allclose(its, ours, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("where", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
def test_logits_very_far_apart_at_very_high_temperatures(quick: Library, where, by_row):
    """A far logit has the weight of its distance; one that is hidden has none."""
    values = np.array([[0.0, -1e30, -1.0], [1e25, 0.0, -np.inf], [np.inf, 1e30, 3.0]])
    shown = np.array([[True] * 3, [True, True, False], [True] * 3])
    row = quick.array(np.where(shown, values, 5.0) if where else values)
    mask = quick.array(shown, "bool") if where else None
    for temperature in (1.0, 1e18, 1e25, 1e30, 1e31):
        offsets = np.where(shown, values, -np.inf) / temperature
        offsets[2] = [0.0, -np.inf, -np.inf]  # +inf has all the mass
        expected = scipy.special.softmax(offsets, axis=-1)
        given = quick.array([[temperature]] * 3) if by_row else temperature
        found = quick.numpy(sx.softmax(row, temperature=given, where=mask))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)
        nats = quick.numpy(sx.entropy(row, temperature=given, where=mask))
        entropy = scipy.special.entr(expected).sum(-1)
        np.testing.assert_allclose(nats, entropy, rtol=1e-12, atol=1e-12)


def test_the_order_of_bytes_does_not_matter(rng):
    logits = rng.normal(size=(3, 4))
    for dtype in (">f2", ">f4", ">f8"):
        swapped = logits.astype(dtype)
        native = swapped.astype(swapped.dtype.newbyteorder("="))
        found = sx.softmax(swapped, temperature=np.full((3, 1), 2.0, dtype))
        np.testing.assert_array_equal(found, sx.softmax(native, temperature=2.0))
        assert found.dtype == dtype
        np.testing.assert_array_equal(sx.entropy(swapped), sx.entropy(native))
        assert sx.PAPER(swapped, np.full((3, 4), 9, ">i8")).dtype in (np.float32, np.float64)
