"""softmax: a weight for every item, masks as truncation, and no row spoiling another."""

from __future__ import annotations

import jax
import jax.test_util
import numpy as np
import pytest
import scipy.special
import torch

import sharpmax as sx
from libraries import Library

HALF_UNIT = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
def test_equals_scipy_on_any_axis(lib: Library, rng, axis, temperature):
    logits = rng.normal(size=(3, 5, 7)) * 4
    ours = sx.softmax(lib.array(logits), temperature=temperature, axis=axis)
    assert lib.owns(ours)
    np.testing.assert_allclose(
        lib.numpy(ours), scipy.special.softmax(logits / temperature, axis=axis), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("dtype", HALF_UNIT)
def test_keeps_the_type_and_rounds_once(lib: Library, rng, dtype):
    if lib.name == "strict" and dtype in ("float16", "bfloat16"):
        pytest.skip("the standard has no half precision")
    logits = lib.array(rng.normal(size=(4, 33)) * 3, dtype)
    ours = sx.softmax(logits)
    assert ours.dtype == logits.dtype
    exact = scipy.special.softmax(lib.numpy(logits).astype(np.float64), axis=-1)
    # Half precision is computed in float32, so rounding the answer is all that is lost.
    error = np.abs(lib.numpy(ours).astype(np.float64) - exact)
    assert (error <= exact * (HALF_UNIT[dtype] * 1.01 + 40 * HALF_UNIT["float32"]) + 2**-25).all()


def test_does_not_depend_on_a_shift_or_an_order(lib: Library, rng):
    logits = rng.normal(size=(4, 9)) * 5
    order = rng.permutation(9)
    plain = lib.numpy(sx.softmax(lib.array(logits)))
    shifted = lib.numpy(sx.softmax(lib.array(logits + 1000.0)))
    shuffled = lib.numpy(sx.softmax(lib.array(logits[:, order])))
    np.testing.assert_allclose(shifted, plain, rtol=1e-11)
    np.testing.assert_allclose(shuffled, plain[:, order], rtol=1e-12)


@pytest.mark.parametrize("garbage", [0.0, 1e4, np.inf, -np.inf, np.nan])
def test_masking_is_truncation(lib: Library, rng, garbage):
    logits = rng.normal(size=(6, 11)) * 3
    where = rng.random((6, 11)) < 0.6
    filled = np.where(where, logits, garbage)
    ours = lib.numpy(sx.softmax(lib.array(filled), where=lib.array(where, "bool")))
    for row, keep, weights in zip(logits, where, ours, strict=True):
        np.testing.assert_allclose(weights[keep], scipy.special.softmax(row[keep]), rtol=1e-12)
        assert (weights[~keep] == 0).all()


def test_one_row_under_several_masks(lib: Library, rng):
    logits = rng.normal(size=8)
    lengths = np.array([1, 3, 8])
    where = np.arange(8) < lengths[:, None]
    ours = lib.numpy(sx.softmax(lib.array(logits), where=lib.array(where, "bool")))
    for length, weights in zip(lengths, ours, strict=True):
        np.testing.assert_allclose(weights[:length], scipy.special.softmax(logits[:length]))


def test_a_mask_of_whole_rows(lib: Library, rng):
    logits = rng.normal(size=(3, 4))
    ours = lib.numpy(
        sx.softmax(lib.array(logits), where=lib.array([[True], [False], [True]], "bool"))
    )
    np.testing.assert_allclose(ours.sum(axis=-1), [1, 0, 1])


def test_first_axis_with_a_mask_that_adds_rows(lib: Library, rng):
    logits = rng.normal(size=(5, 2))
    where = rng.random((3, 5, 2)) < 0.7
    ours = lib.numpy(sx.softmax(lib.array(logits), where=lib.array(where, "bool"), axis=0))
    assert ours.shape == (3, 5, 2)
    np.testing.assert_allclose(ours.sum(axis=1), where.any(axis=1).astype(float))


def test_a_temperature_for_each_row(lib: Library, rng):
    logits, temperature = rng.normal(size=(3, 4)), np.array([[0.5], [1.0], [20.0]])
    ours = lib.numpy(sx.softmax(lib.array(logits), temperature=lib.array(temperature)))
    np.testing.assert_allclose(
        ours, scipy.special.softmax(logits / temperature, axis=-1), rtol=1e-12
    )


def test_a_temperature_that_is_not_positive_spoils_its_row_only(lib: Library, rng):
    temperature = lib.array(np.array([[1.0], [0.0], [-1.0], [2.0]]))
    ours = lib.numpy(sx.softmax(lib.array(rng.normal(size=(4, 3))), temperature=temperature))
    assert np.isnan(ours).all(axis=-1).tolist() == [False, True, True, False]


def test_rows_without_items_are_zero(lib: Library):
    logits = np.array([[1.0, 2.0], [-np.inf, -np.inf], [5.0, -np.inf]])
    ours = lib.numpy(sx.softmax(lib.array(logits)))
    np.testing.assert_allclose(ours[1:], [[0, 0], [1, 0]])
    assert sx.softmax(lib.array(np.zeros((3, 0)))).shape == (3, 0)


def test_infinite_logits_share_the_mass(lib: Library):
    logits = np.array([[np.inf, 3.0, np.inf, -np.inf], [0.0, 1.0, 2.0, 3.0]])
    ours = lib.numpy(sx.softmax(lib.array(logits)))
    np.testing.assert_allclose(ours[0], [0.5, 0, 0.5, 0])
    np.testing.assert_allclose(ours[1], scipy.special.softmax(logits[1]))


def test_nan_stays_in_its_row(lib: Library, rng):
    logits = rng.normal(size=(3, 4))
    logits[1, 2] = np.nan
    ours = lib.numpy(sx.softmax(lib.array(logits)))
    assert np.isnan(ours[1]).all()
    np.testing.assert_allclose(ours[[0, 2]], scipy.special.softmax(logits[[0, 2]], axis=-1))


def test_one_item_has_all(lib: Library):
    assert lib.numpy(sx.softmax(lib.array([[-123.0]]))).item() == 1.0


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
    jax.test_util.check_grads(
        lambda x: function(jax.numpy.asarray(x), where=jax.numpy.asarray(where)),
        (logits,),
        order=1,
        modes=["fwd", "rev"],
    )


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
    theirs = jax.grad(lambda x: (function(x, where=jax.numpy.asarray(where)) ** 2).sum())(logits)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("temperature", [1e15, 1e16, 1e17, 1e20, 1e30])
def test_masked_items_stay_out_at_any_temperature(lib: Library, temperature, dtype):
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


@pytest.mark.parametrize("function", [sx.softmax, sx.entropy, sx.adaptive_temperature_softmax])
def test_compiled_gradients_keep_the_top_item(rng, function):
    """A compiler may round a logit otherwise than the maximum it was compared with."""
    left, right, moved = (jax.numpy.asarray(rng.normal(size=(4, 9, 3))) for _ in range(3))

    def attend(left):
        logits = jax.numpy.einsum("htd,hsd->hts", left, right) * 0.577
        return (
            jax.numpy.einsum("hts,hsd->htd", function(logits), right)
            if function != sx.entropy
            else function(logits)
        )

    def forward(left):
        return jax.jvp(attend, (left,), (moved,))[1]

    step = 1e-6
    expected = (attend(left + step * moved) - attend(left - step * moved)) / (2 * step)
    np.testing.assert_allclose(jax.jit(forward)(left), expected, rtol=0, atol=1e-7)
    _, back = jax.vjp(jax.jit(attend), left)
    weight = jax.numpy.asarray(rng.normal(size=expected.shape))
    np.testing.assert_allclose(
        (back(weight)[0] * moved).sum(), (expected * weight).sum(), atol=1e-6
    )


def test_a_logit_very_far_below_has_no_weight_at_any_temperature(lib: Library):
    row = lib.array([[0.0, -1e30, -1.0]])
    for temperature in (1.0, 1e18, 1e31):
        weights = lib.numpy(sx.softmax(row, temperature=temperature))[0]
        assert weights[1] == 0
        assert weights[0] > 0.49
