"""How fast competitors grow: counts are literal, and rows with a known growth get their law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import sharpmax as sx
from libraries import Library
from sharpmax.theory import count_competitors, growth_power, name_law, sharpening_to_hold_focus
from strategies import GENERATOR, LIBRARY

GAPS = (0.1, 0.5, 2.0, 8.0)
SIZES = (64, 256, 1024, 4096, 16384)


@given(rng=GENERATOR, library=LIBRARY, masked=st.booleans())
def test_counts_are_literal(rng, library, masked):
    logits = rng.normal(size=(3, 17)) * 3
    where = rng.random((3, 17)) < (0.6 if masked else 2.0)
    found = count_competitors(library.array(logits), GAPS, where=library.array(where, "bool"))
    for row, seen, counts in zip(logits, where, library.numpy(found), strict=True):
        visible = row[seen]
        expected = [
            int((visible >= visible.max() - gap).sum()) if len(visible) else 0 for gap in GAPS
        ]
        assert counts.tolist() == expected


@given(rng=GENERATOR, library=LIBRARY, cut=st.integers(0, 20))
def test_counts_of_pieces_add_up(rng, library, cut):
    logits = library.array(rng.normal(size=(2, 20)) * 3)
    top = sx.SoftmaxState.of(logits).max
    left, right = (
        library.numpy(count_competitors(part, GAPS, top=top))
        for part in (logits[:, :cut], logits[:, cut:])
    )
    whole = library.numpy(count_competitors(logits, GAPS))
    np.testing.assert_array_equal(left + right, whole)


def test_infinite_logits_and_empty_rows(quick: Library):
    logits = quick.array([[np.inf, np.inf, 1.0], [-np.inf, -np.inf, -np.inf]])
    assert quick.numpy(count_competitors(logits, GAPS)).tolist() == [[2] * 4, [0] * 4]


def quantiles(distribution, scale):
    """A row of evenly spaced quantiles: what a random row of this distribution is on average."""
    return lambda size: scale * distribution.ppf((np.arange(size) + 0.5) / size)


def one_above(gap):
    """A row with one maximum, this far above items that are nearly equal."""
    return lambda size: np.append(np.linspace(-0.02, 0, size - 1), gap(size))


LOG = math.log(SIZES[0])
KNOWN = {
    # The largest of n normal numbers grows like sqrt(2 log n), and so does what it takes.
    "normal": (quantiles(stats.norm, 8), 0.5, "sqrt(log n)"),
    "exponential": (quantiles(stats.expon, 2), 0.0, "none"),
    "one above others": (one_above(lambda size: LOG), 1.0, "log n"),
    "one that comes nearer": (one_above(lambda size: LOG**2 / math.log(size)), 2.0, "(log n)^2"),
    "bounded": (quantiles(stats.uniform, 8), 5.0, "faster"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_rows_of_known_growth_get_their_law(name):
    draw, power, law = KNOWN[name]
    counts = np.array([count_competitors(draw(size)) for size in SIZES])
    found = float(growth_power(SIZES, counts))
    assert found == pytest.approx(power, abs=0.15)
    assert name_law(found) == law


def test_the_sharpening_holds_the_focus(rng):
    """With the factor that is found, the mean mass of the competitors stays what it was."""
    rows = [rng.normal(size=(200, size)) * 3 for size in SIZES]
    counts = np.array([count_competitors(each).mean(0) for each in rows])
    factors = sharpening_to_hold_focus(counts)
    assert factors[0] == pytest.approx(1.0)

    def mass(logits, factor):
        below = logits.max(-1, keepdims=True) - logits
        return np.exp(-factor * below).sum(-1).mean() - 1

    held = [mass(logits, factor) for logits, factor in zip(rows, factors, strict=True)]
    plain = [mass(logits, 1.0) for logits in rows]
    np.testing.assert_allclose(held, held[0], rtol=0.35)
    assert plain[-1] > 2 * plain[0]


def test_nothing_competes():
    counts = np.ones((3, 2, 4))
    counts[:, 1, 2:] = [[2, 3], [3, 4], [4, 5]]
    power = growth_power((8, 16, 32), counts, GAPS)
    assert np.isnan(power[0])
    assert power[1] > 0
    assert name_law(float(power[0])) == "nothing competes"


@pytest.mark.parametrize(
    ("sizes", "shape", "message"),
    [
        ((8,), (1, 4), "two or more growing numbers"),
        ((8, 8), (2, 4), "two or more growing numbers"),
        ((1, 8), (2, 4), "from 2 up"),
        ((8, 16), (3, 4), "must begin with 2 sizes"),
        ((8, 16), (2, 3), "one number for each of 4 gaps"),
    ],
)
def test_wrong_shapes_are_refused(sizes, shape, message):
    with pytest.raises(ValueError, match=message):
        growth_power(sizes, np.ones(shape), GAPS)
