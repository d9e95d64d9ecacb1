"""The first tab's numbers are those of the library, and its words hold."""

from __future__ import annotations

import numpy as np
import pytest

import sharpmax as sx
from report.pages import Page
from sharpmax.app import rows, weights


@pytest.fixture
def row(rng):
    return rng.normal(size=50) * 3


def shown(row, names, temperature=1.0, scale="linear") -> Page:
    return Page(str(weights.html(row, temperature, names, scale)))


def test_softmax_and_its_entropy(row):
    (given,) = weights.give(row, 2.0, ["softmax"])
    np.testing.assert_allclose(given.weights, sx.softmax(row, temperature=2.0), rtol=1e-12)
    assert given.entropy == pytest.approx(float(sx.entropy(row, temperature=2.0)), rel=1e-12)


def test_every_normaliser_has_a_line_or_a_reason(row):
    page = shown(row, list(sx.NORMALISERS))
    lines = {line["name"] for line in page.data[0]["lines"]}
    for name, normaliser in sx.NORMALISERS.items():
        assert (name in lines) == (normaliser.needs is None)
        assert (f"{name} is not drawn: it needs" in page.text) == (normaliser.needs is not None)


def test_the_line_begins_with_the_largest_logit(row):
    (line,) = shown(row, ["softmax"]).data[0]["lines"]
    assert line["x"][0] == 1
    assert line["x"][-1] == row.size
    assert line["y"] == sorted(line["y"], reverse=True)
    assert line["y"][0] == pytest.approx(sx.softmax(row).max(), rel=1e-4)


def test_a_logarithm_of_nothing_is_a_gap(row):
    (line,) = shown(row, ["hard"], scale="log").data[0]["lines"]
    assert line["y"][0] == 1.0
    assert set(line["y"][1:]) == {None}


@pytest.mark.parametrize("count", [2, 64, 4096])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_one_maximum_lies_on_the_bound(count, temperature):
    """Where the bound is attained, the point of the chart is on its line."""
    row = rows.row("one maximum", count, 6.0, None, "")
    (given,) = weights.give(row, temperature, ["softmax"])
    _, high = sx.theory.weight_bounds(count, 6.0, temperature)
    assert given.weights.max() == pytest.approx(high, rel=1e-12)
    (sentence,) = weights.sentences(count, 6.0, temperature)
    assert f"to {weights._tiny(high)}," in sentence


def test_16384_items_are_a_short_line():
    page = shown(np.random.default_rng(0).normal(size=16_384), ["softmax"])
    assert len(page.data[0]["lines"][0]["x"]) <= weights.POINTS


def test_no_normaliser_is_refused(row):
    with pytest.raises(sx.UserError, match="choose at least one"):
        weights.html(row, 1.0, [], "linear")
