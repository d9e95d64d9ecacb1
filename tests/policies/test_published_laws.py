"""The published length laws against literal formulas, on every array library."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax import LogLength, UserError
from sharpmax.policies import (
    CriticalScale,
    GrokScale,
    InfoScale,
    Llama4Scale,
    YarnScale,
    traits,
)
from strategies import LIBRARY


def info_scale(items, reference, head_size):
    if items <= reference:
        return 1.0
    numerator, denominator = (1 - length ** (-2 / head_size) for length in (items, reference))
    return math.sqrt(numerator / denominator)


def yarn_scale(items, reference, slope):
    attention_factor = slope * math.log(items / reference) + 1 if items > reference else 1.0
    return attention_factor * attention_factor  # on the query and on the key


def llama4_scale(items, step, slope):
    position = items - 1
    return math.log(math.floor((position + 1) / step) + 1) * slope + 1


def grok_scale(items, reference):
    position = items - 1
    return math.log2(position) / math.log2(reference) if position > reference else 1.0


def critical_scale(items, gamma):
    return gamma * math.log(items)


REFERENCES = st.integers(2, 1 << 17)
SLOPES = st.floats(0.01, 1)
LAWS = st.one_of(
    st.tuples(
        st.just((InfoScale, info_scale)), st.tuples(REFERENCES, st.sampled_from([1, 64, 256]))
    ),
    st.tuples(st.just((YarnScale, yarn_scale)), st.tuples(REFERENCES, SLOPES)),
    st.tuples(st.just((Llama4Scale, llama4_scale)), st.tuples(st.integers(1, 1 << 17), SLOPES)),
    st.tuples(st.just((GrokScale, grok_scale)), st.tuples(REFERENCES)),
    st.tuples(st.just((CriticalScale, critical_scale)), st.tuples(SLOPES)),
)
EXAMPLES = [InfoScale(16, 64), YarnScale(16), Llama4Scale(16), GrokScale(16), CriticalScale(0.25)]


@given(
    library=LIBRARY,
    law=LAWS,
    items=st.lists(st.integers(2, 1 << 20), min_size=1, max_size=8),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_a_law_is_its_published_formula(library, law, items, dtype):
    (kind, literal), arguments = law
    policy = kind(*arguments)
    counts = library.array(items, "int64")
    ours = library.numpy(policy(library.array(np.zeros(len(items)), dtype), counts))
    expected = [literal(n, *arguments) for n in items]
    # A law multiplies, divides and takes logarithms a few times. In InfoScale 1 - n^(-2/d) of the
    # literal version loses digits: at most a factor d / (2 log 2) = 185 of float64.
    tolerance = 1e-6 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(ours, expected, rtol=tolerance)
    assert policy(0.0, items[0]) == pytest.approx(expected[0], rel=1e-13)


@given(library=LIBRARY, law=LAWS, dtype=st.sampled_from(["float32", "float64"]))
def test_plain_rows_get_exactly_one_and_the_next_row_more(library, law, dtype):
    (kind, _), arguments = law
    policy = kind(*arguments)
    longest = traits(policy).plain_up_to
    assert traits(policy).length_only
    assert (longest == 0) == (kind is CriticalScale or arguments[0] == 1)
    counts = np.unique([0, 1, 2, longest // 2, longest]).clip(0, longest)
    nats = library.array(np.zeros(counts.size), dtype)
    if longest:
        answers = library.numpy(policy(nats, library.array(counts, "int64")))
        np.testing.assert_array_equal(answers, 1)
    if kind is not CriticalScale:
        assert policy(0.0, longest + 1) > 1


@given(law=LAWS)
def test_a_law_never_falls_as_rows_grow(law):
    (kind, _), arguments = law
    counts = np.unique(np.geomspace(1, 1 << 20, 400).astype(int))
    assert (np.diff(kind(*arguments)(np.zeros(counts.size), counts)) >= 0).all()


@given(reference=REFERENCES, items=st.integers(2, 1 << 20))
def test_laws_agree_where_they_should(reference, items):
    assert GrokScale(reference)(0.0, items + 1) == LogLength(reference)(0.0, items)
    if items > reference:
        critical = CriticalScale(1 / math.log(reference))(0.0, items)
        assert LogLength(reference)(0.0, items) == pytest.approx(critical, rel=1e-14)


def test_infoscale_needs_a_head_size():
    with pytest.raises(UserError, match=r"needs the size of a head: write InfoScale\(512, head"):
        InfoScale(512)(0.0, 1024)
    assert InfoScale(512).with_head_size(64) == InfoScale(512, 64)
    assert InfoScale(512, 128).with_head_size(64) == InfoScale(512, 128)


@pytest.mark.parametrize("law", EXAMPLES, ids=repr)
def test_laws_are_values(law):
    assert law == dataclasses.replace(law)
    assert hash(law) == hash(dataclasses.replace(law))
    assert law.peaks == ()


BAD = [
    (lambda: InfoScale(1, 64), "reference must be a number of items above 1 .* got 1"),
    (lambda: InfoScale(512, 0), "head_size must be a whole number, 1 or more, got 0"),
    (lambda: YarnScale(512, slope=0), "slope must be a positive finite number, got 0"),
    (lambda: YarnScale(math.inf), "reference must be"),
    (lambda: Llama4Scale(0.5), r"step must be a whole number, 1 or more, got 0\.5"),
    (lambda: Llama4Scale(8192, slope=-1), "slope must be a positive finite number, got -1"),
    (lambda: GrokScale(1), "reference must be"),
    (lambda: CriticalScale(math.nan), "gamma must be a positive finite number, got nan"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=range(len(BAD)))
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
