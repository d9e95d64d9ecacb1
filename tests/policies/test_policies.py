"""Policies: the published polynomial to the letter, and what each of the others promises."""

from __future__ import annotations

import dataclasses
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sharpmax as sx
from libraries import Library
from sharpmax.policies import LengthLaw, Policy, Traits, traits
from strategies import GENERATOR, LIBRARY

FALLS_BACK_AT = 5.945


PUBLISHED = {2.0: 2.099, 3.0: 2.250, 4.0: 2.389, 5.0: 2.294, 4.41: 2.421, 0.5: 1.0, 0.0: 1.0}


def test_the_paper_s_values(lib: Library):
    """H = 2 and H = 3 pin the order of the coefficients; at H = 1 both orders agree."""
    ours = sx.PAPER(lib.array(list(PUBLISHED)), lib.array([100] * 7, "int64"))
    np.testing.assert_allclose(lib.numpy(ours), list(PUBLISHED.values()), atol=5e-4)
    for nats, expected in PUBLISHED.items():
        assert sx.PAPER(nats, 100) == pytest.approx(expected, abs=5e-4)


def test_the_paper_switches_off_at_both_ends():
    nats = np.linspace(0, 9, 90_001)
    active = nats[sx.PAPER(nats, np.full(nats.shape, 9)) > 1]
    assert active.min() == pytest.approx(0.849, abs=1e-3)
    assert active.max() == pytest.approx(FALLS_BACK_AT, abs=1e-3)


@given(st.floats(0, 12))
def test_the_paper_is_numpy_s_polyval(nats):
    fitted = max(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], nats), 1.0) if nats > 0.5 else 1.0
    assert sx.PAPER(nats, 10) == pytest.approx(fitted, rel=1e-12)


def test_a_nan_entropy_stays_nan(lib: Library):
    nan = lib.array([np.nan, 2.0])
    for policy in (sx.PAPER, sx.Saturating(sx.PAPER)):
        ours = lib.numpy(policy(nan, lib.array([3, 3], "int64")))
        assert np.isnan(ours).tolist() == [True, False]


def test_log_length(lib: Library):
    counts = lib.array([0, 1, 16, 64, 256, 65536], "int64")
    entropy = lib.array(np.zeros(6))
    ours = lib.numpy(sx.LogLength(256)(entropy, counts))
    np.testing.assert_allclose(ours, [1, 1, 1, 1, 1, 2], rtol=1e-12)
    assert sx.LogLength(16)(0.0, 256) == pytest.approx(2.0)


def test_constant(lib: Library):
    ours = sx.Constant(1.5)(lib.array([0.1, 3.0], "float32"), lib.array([2, 4], "int64"))
    assert lib.numpy(ours).tolist() == [1.5, 1.5]
    assert ours.dtype == lib.array([0.1], "float32").dtype
    assert sx.Constant(1.5)(0.3, 8) == 1.5


def test_saturating_is_the_running_maximum(lib: Library):
    nats = np.linspace(0, 12, 2001)
    counts = np.full(nats.shape, 50)
    held = sx.Saturating(sx.PAPER)(lib.array(nats), lib.array(counts, "int64"))
    running = np.maximum.accumulate(sx.PAPER(nats, counts))
    # The running maximum over a grid misses the peak by at most its curvature times the step squared.
    np.testing.assert_allclose(lib.numpy(held), running, atol=1e-4)
    assert lib.numpy(held)[-1] == pytest.approx(2.4214, abs=1e-4)


@given(
    st.lists(st.floats(-2, 2), min_size=1, max_size=6),
    st.floats(0, 3),
)
@example([-4.9e-229, 1.0, 0.0, 0.0], 0.0)  # a maximum at 1e228 nats
@example([5e-324, 1.0, 0.0, 0.0], 0.0)  # cannot be divided by
@example([0.0, 0.0], 0.0)
def test_saturating_any_polynomial(coefficients, threshold):
    policy = sx.Polynomial(tuple(coefficients), threshold=threshold)
    nats = np.linspace(0, 8, 4001)
    counts = np.full(nats.shape, 5)
    held = sx.Saturating(policy)(nats, counts)
    running = np.maximum.accumulate(policy(nats, counts))
    assert (held >= running - 1e-9).all()
    assert (np.diff(held) >= -1e-6).all()
    # Never more than the policy reaches somewhere below, a finer grid included.
    fine = np.linspace(0, 8, 80_001)
    assert held[-1] <= policy(fine, np.full(fine.shape, 5)).max() * (1 + 1e-3) + 1e-3


def length_law(entropy, count):
    """A plain function, and one that states its traits."""
    return 1.0


length_law.needs_entropy = False


@dataclasses.dataclass(frozen=True)
class ByHead:
    by_head = True
    peaks = ()

    def __call__(self, entropy, count, /):
        return entropy


TRAITS = {
    sx.PAPER: Traits(needs_entropy=True, learned=False, any_library=True),
    sx.Constant(2.0): Traits(needs_entropy=False, learned=False, any_library=True),
    sx.Constant(1.0): Traits(False, False, False, True, plain_up_to=sys.maxsize),
    sx.LogLength(8): Traits(False, False, False, True, plain_up_to=8),
    sx.LogLength(8.9): Traits(False, False, False, True, plain_up_to=8),
    sx.Saturating(sx.PAPER): Traits(needs_entropy=True, learned=False, any_library=True),
    sx.Saturating(sx.LogLength(8)): Traits(False, False, False, True, plain_up_to=8),
    sx.Saturating(ByHead()): Traits(by_head=True),
    (lambda entropy, count: 1.0): Traits(True, False, True, False),
    length_law: Traits(needs_entropy=False),
    ByHead(): Traits(by_head=True),
}


@pytest.mark.parametrize(("policy", "expected"), TRAITS.items(), ids=range(len(TRAITS)))
def test_traits(policy, expected):
    assert traits(policy) == expected
    assert traits(policy).length_only != expected.needs_entropy


def plain_policies(reference: float) -> list[Policy]:
    lengths = sx.LogLength(reference)
    return [sx.Constant(1.0), sx.Constant(2.0), lengths, sx.Saturating(lengths), sx.PAPER]


@given(
    library=LIBRARY,
    rng=GENERATOR,
    reference=st.integers(2, 1 << 20) | st.floats(1.01, 1e6),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_rows_that_a_policy_calls_plain_get_exactly_one(library, rng, reference, dtype):
    """At the length itself too, where a rounded quotient of logarithms may be above 1."""
    for policy in plain_policies(reference):
        longest = min(traits(policy).plain_up_to, 1 << 24)
        counts = np.append(rng.integers(0, longest + 1, size=20), longest)
        nats = library.array(rng.uniform(0, 8, size=21), dtype)
        answers = library.numpy(policy(nats, library.array(counts, "int64")))
        if longest:
            np.testing.assert_array_equal(answers, 1)


@given(reference=st.integers(2, 1 << 20))
def test_one_item_more_is_sharpened(reference):
    policy = sx.LogLength(reference)
    assert policy(0.0, traits(policy).plain_up_to + 1) > 1


@given(nats=st.floats(0, 20), count=st.integers(0, 10**6))
def test_a_policy_without_need_of_the_entropy_ignores_it(nats, count):
    for policy in TRAITS:
        if traits(policy).length_only:
            assert policy(nats, count) == policy(0.0, count)


def test_a_length_law_is_one_formula(lib: Library):
    @dataclasses.dataclass(frozen=True)
    class SquareRoot(LengthLaw):
        reference: float

        def factor(self, items, xp):
            return xp.sqrt(items / self.reference)

    ours = SquareRoot(4)(lib.array(np.zeros(3), "float32"), lib.array([0, 4, 16], "int64"))
    np.testing.assert_allclose(lib.numpy(ours), [0.5, 1.0, 2.0])
    assert ours.dtype == lib.array([0.0], "float32").dtype
    assert SquareRoot(4)(1.0, 16) == 2.0
    assert traits(SquareRoot(4)).length_only
    with pytest.raises(NotImplementedError, match=r"LengthLaw must define factor"):
        LengthLaw()(1.0, 16)


@pytest.mark.parametrize("policy", [sx.Constant(2.0), sx.LogLength(4), sx.Saturating(sx.PAPER)])
def test_saturating_leaves_others_alone(policy):
    nats, counts = np.linspace(0, 9, 50), np.arange(50)
    np.testing.assert_array_equal(sx.Saturating(policy)(nats, counts), policy(nats, counts))


@pytest.mark.parametrize(
    "policy", [sx.PAPER, sx.Constant(2.0), sx.LogLength(8), sx.Saturating(sx.PAPER)], ids=repr
)
def test_policies_are_values(policy):
    assert policy == dataclasses.replace(policy)
    assert hash(policy) == hash(dataclasses.replace(policy))
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.threshold = 3
    assert eval(repr(policy), vars(sx)) == policy


def test_half_precision_entropy_is_not_rounded_to_half(lib: Library):
    if lib.name == "strict":
        pytest.skip("the standard has no half precision")
    ours = sx.PAPER(lib.array([2.0], "float16"), lib.array([9], "int64"))
    assert lib.numpy(ours).item() == pytest.approx(2.099, abs=1e-6)


@given(library=LIBRARY, rng=GENERATOR, degree=st.integers(0, 5))
@settings(max_examples=30)
def test_fit_recovers_a_polynomial(library, rng, degree):
    coefficients = rng.normal(size=degree + 1)
    nats = rng.uniform(0.2, 6, size=200)
    fitted = sx.fit_polynomial(
        library.array(nats), library.array(np.polyval(coefficients, nats)), degree=degree
    )
    np.testing.assert_allclose(fitted.coefficients, coefficients, atol=1e-8)
    assert fitted.threshold == 0.5


def test_fit_of_the_paper_s_curve_is_the_paper_s(rng):
    nats = rng.uniform(0.9, 5.9, size=500)
    best = sx.PAPER(nats, np.full(500, 10)) + rng.normal(size=500) * 1e-9
    fitted = sx.fit_polynomial(torch.tensor(nats, requires_grad=True), torch.tensor(best))
    np.testing.assert_allclose(fitted.coefficients, sx.PAPER.coefficients, atol=1e-6)


BAD = [
    (lambda: sx.Constant(0.0), ValueError, "inverse_temperature must be a positive finite number, got 0.0"),
    (lambda: sx.Constant(math.nan), ValueError, "got nan"),
    (lambda: sx.LogLength(1), ValueError, "reference must be a number of items above 1 .* got 1"),
    (lambda: sx.Polynomial(()), ValueError, r"coefficients must be finite .* got \(\)"),
    (lambda: sx.Polynomial((1.0, math.inf)), ValueError, "coefficients must be finite"),
    (lambda: sx.Polynomial((1.0,), threshold=-1), ValueError, "threshold must be an entropy .* got -1"),
    (lambda: sx.Saturating(lambda h, n: 1.0), TypeError, "Saturating needs a policy that knows its peaks"),
    (lambda: sx.fit_polynomial(np.ones(3), np.ones(4)), ValueError, "3 entropies and 4 inverse"),
    (lambda: sx.fit_polynomial(np.ones(9), np.ones(9)), ValueError, "at least 5 different entropies, got 1"),
    (lambda: sx.fit_polynomial(np.arange(9.0), np.full(9, np.nan)), ValueError, "must be finite"),
    (lambda: sx.fit_polynomial(np.arange(9.0), np.arange(9.0), degree=-1), ValueError, "degree must be"),
    (lambda: sx.PAPER(np.ones(2), torch.ones(2)), TypeError, "one library, got entropy from numpy"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_gets_one_clear_sentence(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_saturating_holds_a_step_at_the_threshold():
    """A polynomial that only falls is highest just above its threshold."""
    falling = sx.Polynomial((-1.0, 4.0), threshold=0.5)
    held = sx.Saturating(falling)
    assert [held(nats, 9) for nats in (0.5, 0.6, 2.0, 9.0)] == [1.0, 3.5, 3.5, 3.5]
