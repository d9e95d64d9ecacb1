"""The charts show the numbers of the library, and the sentences are true."""

from __future__ import annotations

import numpy as np
import pytest

import sharpmax as sx
from report.pages import Page
from sharpmax.app.softmax.charts import (
    MAX_POINTS,
    apply_normalisers,
    describe_bounds,
    format_weight,
    render_row,
)
from sharpmax.app.softmax.rows import make_row
from sharpmax.report.palette import METHODS


@pytest.fixture
def row(rng):
    return rng.normal(size=50) * 3


def render(row, names, temperature=1.0, scale="linear") -> Page:
    return Page(str(render_row(row, temperature, names, scale)))


def test_softmax_and_its_entropy(row):
    (output,) = apply_normalisers(row, 2.0, ["softmax"])
    np.testing.assert_allclose(output.weights, sx.softmax(row, temperature=2.0), rtol=1e-12)
    assert output.entropy == pytest.approx(float(sx.entropy(row, temperature=2.0)), rel=1e-12)


def test_every_normaliser_has_a_line_or_a_reason(row):
    page = render(row, list(sx.NORMALISERS))
    lines = {line["name"] for line in page.data[0]["lines"]}
    for name, normaliser in sx.NORMALISERS.items():
        assert (METHODS[name].name in lines) == (normaliser.needs is None)
        assert (f"{name} is not drawn: it needs" in page.text) == (normaliser.needs is not None)


def test_the_line_begins_with_the_largest_logit(row):
    line, needle = render(row, ["softmax"]).data[0]["lines"]
    assert line["x"][0] == 1
    assert line["x"][-1] == row.size
    assert line["y"] == sorted(line["y"], reverse=True)
    assert line["y"][0] == pytest.approx(sx.softmax(row).max(), rel=1e-4)
    assert (needle["x"], needle["y"]) == ([1], [line["y"][0]])


def test_a_log_scale_leaves_out_zeros(row):
    line, _ = render(row, ["hard"], scale="log").data[0]["lines"]
    assert line["y"][0] == 1.0
    assert set(line["y"][1:]) == {None}


@pytest.mark.parametrize("count", [2, 64, 4096])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_one_maximum_lies_on_the_bound(count, temperature):
    """This row attains the bound, so its point lies on the line of the chart."""
    row = make_row("one maximum", count, 6.0, None, "")
    (output,) = apply_normalisers(row, temperature, ["softmax"])
    _, high = sx.theory.weight_bounds(count, 6.0, temperature)
    assert output.weights.max() == pytest.approx(high, rel=1e-12)
    sentence = describe_bounds(count, 6.0, temperature)
    assert f"to {format_weight(high)}," in sentence


def test_16384_items_are_a_short_line():
    page = render(np.random.default_rng(0).normal(size=16_384), ["softmax"])
    assert len(page.data[0]["lines"][0]["x"]) <= MAX_POINTS


def test_no_normaliser_is_refused(row):
    with pytest.raises(sx.UserError, match="choose at least one"):
        render_row(row, 1.0, [], "linear")
