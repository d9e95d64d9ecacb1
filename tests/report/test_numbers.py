"""Numbers are written as people read them."""

from __future__ import annotations

import math

import numpy as np

from sharpmax.report.numbers import (
    fixed,
    join,
    p_value,
    percent,
    plural,
    points,
    power_of_ten,
    round_all,
    share,
    span,
)


def test_powers_are_numbers_while_they_can_be_read():
    assert power_of_ten(np.log10(1337)) == "1,337"
    assert power_of_ten(30.2) == "10^30"
    assert power_of_ten(1234.0) == "10^1234"


def test_no_minus_before_a_zero_and_a_dash_for_nothing():
    assert fixed(-0.001, 2) == "0.00"
    assert fixed(1234.567, 1) == "1,234.6"
    assert fixed(None, 2) == fixed(math.nan, 2) == p_value(None) == "\N{EN DASH}"
    assert points(-0.0001) == "+0.0"
    assert points(-0.123) == "-12.3"


def test_shares_and_counts():
    assert share(0.742, 0.117) == "74.2 ± 11.7"
    assert share(0.742) == "74.2"
    assert percent(0.5, 0) == "50\N{NO-BREAK SPACE}%"
    assert [plural(1, "head"), plural(2000, "head")] == ["1 head", "2,000 heads"]
    assert [span([16]), span([16, 64, 2048])] == ["16", "16 to 2,048"]
    assert [join(["a"]), join(["a", "b"]), join(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_numbers_are_rounded_at_any_depth():
    nested = {"a": [1.2345678, (math.nan, 7)], "b": "text", "c": range(2)}
    assert round_all(nested) == {"a": [1.2346, [None, 7]], "b": "text", "c": [0, 1]}
