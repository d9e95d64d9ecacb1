"""Rows of logits have the requested size and spread."""

from __future__ import annotations

import numpy as np
import pytest

from sharpmax.app.softmax.rows import DRAWN, SHAPES, TYPED, make_row


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [2, 64, 16_384])
@pytest.mark.parametrize("spread", [0.0, 7.5])
def test_a_shape_has_the_count_and_the_spread(shape, count, spread):
    row = make_row(shape, count, spread, None, "")
    assert row.shape == (count,)
    assert np.ptp(row) == pytest.approx(spread)


def test_one_maximum_is_one():
    row = make_row("one maximum", 10, 3.0, None, "")
    assert sorted(row)[-2:] == [0.0, 3.0]


def test_a_drawn_curve_is_followed():
    row = make_row(DRAWN, 5, 10.0, "0,1,0", "")
    assert row.tolist() == [0.0, 5.0, 10.0, 5.0, 0.0]


def test_typed_logits_are_unchanged():
    assert make_row(TYPED, 64, 99.0, None, "3 1").tolist() == [3.0, 1.0]
