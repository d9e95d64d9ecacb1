"""A policy as numbers answers what its Python code does, bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharpmax as sx
from sharpmax import UserError, cpu
from sharpmax.cpu.policy_table import tabulate
from sharpmax.policies import Polynomial

COEFFICIENTS = st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=5)


@dataclasses.dataclass(frozen=True)
class Stranger:
    """The same policy where only its Python code says what it does."""

    policy: object

    def __call__(self, entropy, count, /):
        return self.policy(entropy, count)


@given(COEFFICIENTS, st.floats(0, 3, width=32), st.booleans(), st.integers(0, 99))
def test_a_table_answers_as_the_policy(coefficients, threshold, held, seed):
    policy = Polynomial(tuple(coefficients), threshold=threshold)
    policy = sx.Saturating(policy) if held else policy
    rng = np.random.default_rng(seed)
    spread = rng.exponential(3, size=(1, 20, 1))
    query, key = (rng.normal(size=(2, n, 4)).astype(np.float32) for n in (20, 30))
    query = (query * spread).astype(np.float32)
    assert tabulate(policy) is not None
    assert tabulate(Stranger(policy)) is None
    ours = cpu.attention_stats(query, key, policy=policy)
    theirs = cpu.attention_stats(query, key, policy=Stranger(policy))
    np.testing.assert_array_equal(ours.entropy, theirs.entropy)
    np.testing.assert_array_equal(ours.inverse_temperature, theirs.inverse_temperature)


def test_nan_stays_nan_and_a_constant_is_one_number():
    query = np.array([[[np.nan, 1.0]], [[0.5, 1.0]]], np.float32)
    key = np.ones((2, 3, 2), np.float32)
    factor = cpu.attention_stats(query, key, policy=sx.PAPER).inverse_temperature
    assert np.isnan(factor[0]).all()
    assert np.isfinite(factor[1]).all()
    for policy in (sx.Constant(0.25), sx.Saturating(sx.Constant(0.25))):
        stats = cpu.attention_stats(query[1:], key[1:], policy=policy)
        assert (stats.inverse_temperature == 0.25).all()


def test_a_subclass_is_asked_itself():
    class Twice(Polynomial):
        def __call__(self, entropy, count, /):
            return 2 * super().__call__(entropy, count)

    policy = Twice((1.0, 1.0))
    assert tabulate(policy) is None
    query, key = np.ones((1, 1, 2), np.float32), np.ones((1, 8, 2), np.float32)
    factor = cpu.attention_stats(query, key, policy=policy).inverse_temperature
    np.testing.assert_allclose(factor, 2 * (1 + np.log(8)), rtol=1e-6)


def test_a_policy_that_answers_too_much_is_refused():
    query, key = np.ones((1, 1, 2), np.float32), np.ones((1, 8, 2), np.float32)
    with pytest.raises(UserError, match="expected a positive number"):
        cpu.attention_stats(query, key, policy=Polynomial((1e30, 1.0)))


class ByHead:
    """Sharpen the second of three heads of the second group only."""

    by_head = True

    def __call__(self, entropy, count, /):
        assert entropy.shape[1:3] == (2, 3)
        factor = 1 + 0 * entropy
        factor[:, 1, 1] = 2
        return factor


@pytest.mark.parametrize("queries", [1, 70])
def test_a_policy_may_differ_by_head(rng, queries):
    query = rng.normal(size=(2, 6, queries, 4)).astype(np.float32)
    key, value = (rng.normal(size=(2, 2, 90, 4)).astype(np.float32) for _ in range(2))
    options = {"enable_gqa": True, "is_causal": queries > 1}
    found = cpu.attention(query, key, value, policy=ByHead(), threads=2, **options)
    for policy, heads in ((sx.Constant(2.0), [4]), (sx.Constant(1.0), [0, 1, 2, 3, 5])):
        expected = cpu.attention(query, key, value, policy=policy, **options)
        np.testing.assert_allclose(
            found.output[:, heads], expected.output[:, heads], rtol=1e-5, atol=1e-6
        )
        assert (found.stats.inverse_temperature[:, heads] == policy.inverse_temperature).all()
