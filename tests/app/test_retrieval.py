"""The quick head of the page against the head of the experiment, item by item."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

import sharpmax as sx
from report.pages import Page
from sharpmax.app import maps, retrieval
from sharpmax.experiments.max_retrieval import data, model


@partial(jax.jit, static_argnames="scaled")
def truth(weights, sets: data.Sets, *, scaled: bool):
    """Logits and answers by the experiment's own model."""
    (logits,) = model.look(weights, sets, scaled=scaled).logits
    return logits, model.forward(weights, sets, scaled=scaled).argmax(1)


@pytest.mark.parametrize("seed", [0, 7])
def test_logits_and_answers_are_those_of_the_experiment(seed):
    sets, head = retrieval.draw(seed, 24, 300), retrieval.head(seed)
    sets.priority[:, :2] = 0, 1  # the ends of the grid
    present = np.ones(sets.priority.shape, bool)
    drawn = data.Sets(sets.priority, sets.label, present, sets.query, sets.answer)
    logits, answers = truth(head.weights, drawn, scaled=head.scaled)
    quick = head.logits(sets)
    # Logits are hundreds, which float32 rounds to 6e-5, in sums of 128.
    np.testing.assert_allclose(quick, logits, atol=1e-3)
    np.testing.assert_array_equal(head.answers(sets, sx.softmax(quick)), answers)


def test_sets_are_as_the_experiment_has_them():
    sets = retrieval.draw(0, 200, 64)
    assert sets.priority.min() >= 0
    assert sets.priority.max() < 1
    assert set(np.unique(sets.label)) == set(range(10))
    assert (retrieval.taken(sets.priority, sets.highest) == sets.priority.max(1)).all()


def test_plain_attention_as_a_policy_changes_nothing():
    plain = retrieval.plain(0, 64)
    same = retrieval.sharpened(0, 64, sx.Constant(1.0))
    np.testing.assert_allclose(same.given, plain.given, rtol=1e-6)
    np.testing.assert_array_equal(same.right, plain.right)


def test_a_policy_is_that_of_the_library():
    """As adaptive temperature is everywhere else."""
    _, logits = retrieval.looked_at(0, 256)
    given = retrieval.sharpened(0, 256, sx.PAPER).given
    expected = sx.adaptive_temperature_softmax(logits.astype(np.float64))
    np.testing.assert_allclose(given, expected, atol=1e-5)


def test_sharpening_sharpens():
    plain, sharp = retrieval.plain(0, 1024), retrieval.sharpened(0, 1024, sx.Constant(3.0))
    assert (sharp.entropy < plain.entropy).all()
    assert sharp.of_maximum.mean() > plain.of_maximum.mean()
    assert (sharp.inverse_temperature == 3.0).all()


def test_heads_disperse_as_sets_grow():
    few, many = (retrieval.plain(0, items) for items in (16, 2048))
    assert few.right.mean() > 0.95
    assert few.right.mean() > many.right.mean() + 0.1
    assert few.of_maximum.mean() > many.of_maximum.mean()


def test_the_map_shows_what_was_given():
    page = Page(str(maps.html(0, 64, "paper", None)))
    frames = page.data[0]
    sets, _ = retrieval.looked_at(0, 64)
    plain = retrieval.plain(0, 64).given
    order = np.argsort(sets.priority[:1])[0, -16:]
    np.testing.assert_allclose(frames["frames"][0][0], plain[0, order], atol=6e-4)
    assert frames["columns"][-1] == "the maximum"
    assert "64 items" in page.text


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [("constant", 0.0, "policy constant: "), ("log-length", None, "needs a number")],
)
def test_a_policy_that_cannot_be_is_refused(name, number, message):
    with pytest.raises(sx.UserError, match=message):
        maps.html(0, 16, name, number)
