"""The exponential that everything rests on, over its whole range."""

from __future__ import annotations

import numpy as np
from numba import njit

from sharpmax.cpu import arithmetic

STRIDE = 97
"""Every so many float32 numbers: twelve million of them."""


@njit
def powers(numbers, found):
    for place in range(len(numbers)):
        found[place] = arithmetic.exp2(numbers[place])


@njit
def tangents(numbers, found):
    for place in range(len(numbers)):
        found[place] = arithmetic.tanh(numbers[place])


def test_exp2_is_off_by_two_units_in_the_last_place_at_most():
    """From -126 to 0, by the bits of float32."""
    last = int(np.float32(-126).view(np.uint32))
    first = int(np.float32(-0.0).view(np.uint32))
    numbers = np.arange(first, last + 1, STRIDE, dtype=np.uint32).view(np.float32)
    found = np.empty_like(numbers)
    powers(numbers, found)
    exact = np.exp2(numbers.astype(np.float64))
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(found - exact) / unit) <= 2


def test_exp2_is_monotone_where_it_matters_and_1_at_0():
    numbers = np.linspace(-30, 0, 200_001, dtype=np.float32)
    found = np.empty_like(numbers)
    powers(numbers, found)
    assert found[-1] == 1
    assert (np.diff(found) >= -np.spacing(found[1:])).all()


def test_exp2_far_below_is_nothing_and_nan_is_nan():
    odd = np.array([-126.6, -127.0, -1e4, -3e38, -np.inf, np.nan, -np.nan], dtype=np.float32)
    odd = np.append(odd, np.array([0x7F800001, 0xFFC00155], np.uint32).view(np.float32))
    found = np.empty_like(odd)
    powers(odd, found)
    assert (found[:5] == 0).all()
    assert np.isnan(found[5:]).all()


def test_tanh_is_exact_to_float32_near_and_far():
    numbers = np.concatenate(
        [np.linspace(-12, 12, 1_000_001), np.geomspace(1e-30, 1, 10_001), [0.0, np.inf, -np.inf]]
    ).astype(np.float32)
    found = np.empty_like(numbers)
    tangents(numbers, found)
    exact = np.tanh(numbers.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(found - exact) / unit) <= 4
    nothing = np.array([np.nan], np.float32)
    tangents(nothing, found[:1])
    assert np.isnan(found[0])
