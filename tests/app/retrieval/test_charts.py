"""The maps show the weights of the head."""

from __future__ import annotations

import numpy as np
import pytest

import sharpmax as sx
from report.pages import Page
from sharpmax.app.retrieval.charts import render_retrieval
from sharpmax.app.retrieval.head import attend, attend_plain, sets_and_logits


def test_the_map_shows_the_weights():
    page = Page(str(render_retrieval(0, 64, "paper", None)))
    frames = page.data[0]
    sets, _ = sets_and_logits(0, 64)
    order = np.argsort(sets.priority[:1])[0, -16:]
    for frame, outcome in zip(
        frames["frames"], (attend_plain(0, 64), attend(0, 64, sx.PAPER)), strict=True
    ):
        np.testing.assert_allclose(frame[0], outcome.weights[0, order], atol=6e-4)
    assert frames["columns"][0] == "item 16 by priority"
    assert frames["columns"][-2:] == ["item 2 by priority", "the maximum"]
    assert "64 items" in page.text


@pytest.mark.parametrize(
    ("policy", "number", "message"),
    [("constant", 0.0, "policy constant:0: "), ("log-length", None, "needs a number")],
)
def test_a_bad_number_is_refused(policy, number, message):
    with pytest.raises(sx.UserError, match=message):
        render_retrieval(0, 16, policy, number)
