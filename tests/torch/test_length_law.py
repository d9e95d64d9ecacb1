"""The law of calibrations equals a literal formula, and is exactly 1 where nothing may change."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharpmax.torch.length_law import inverse_temperature, log_excess


def literal(rate: float, count: int, from_tokens: int, low: float, high: float) -> float:
    factor = 1 + rate * math.log(count / from_tokens) if count > from_tokens else 1.0
    return min(max(factor, low), high)


@given(
    rate=st.floats(-2, 2),
    count=st.integers(0, 1 << 20),
    from_tokens=st.integers(1, 4096),
    low=st.floats(0.01, 1),
    high=st.floats(1, 4),
)
def test_the_literal_formula(rate, count, from_tokens, low, high):
    rates, counts = (torch.tensor([x], dtype=torch.float64) for x in (rate, count))
    answer = inverse_temperature(rates, log_excess(counts, from_tokens), low, high)
    expected = literal(rate, max(count, 1), from_tokens, low, high)
    assert answer.item() == pytest.approx(expected, rel=1e-12)


@given(rate=st.floats(-1024, 1024), from_tokens=st.integers(1, 1 << 20))
def test_exactly_one_up_to_from_tokens(rate, from_tokens):
    counts = torch.tensor([0, 1, from_tokens // 2, from_tokens]).float()
    rates = torch.tensor([rate, 0.0])[:, None]
    assert (inverse_temperature(rates, log_excess(counts, from_tokens), 0.0, 2.0) == 1).all()


def test_a_lower_bound_of_zero_stays_an_inverse_temperature():
    answer = inverse_temperature(torch.tensor([-1.0]), log_excess(torch.tensor([1e9]), 1), 0.0, 2.0)
    assert 0 < answer.item() < 1e-15
