"""The tabulated head equals the head of the experiment, item by item."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

import sharpmax as sx
from sharpmax.app.retrieval.head import (
    attend,
    attend_plain,
    draw_sets,
    load_head,
    pick,
    ranks_correctly,
    sets_and_logits,
)
from sharpmax.experiments.max_retrieval import data, model


@partial(jax.jit, static_argnames="scaled")
def truth(weights, sets: data.Sets, *, scaled: bool):
    """Return logits and answers of the experiment's own model."""
    (logits,) = model.encode(weights, sets, scaled=scaled).logits
    return logits, model.forward(weights, sets, scaled=scaled).argmax(1)


@pytest.mark.parametrize("seed", [0, 7])
def test_logits_and_answers_are_those_of_the_experiment(seed):
    sets, head = draw_sets(seed, 24, 300), load_head(seed)
    sets.priority[:, :2] = 0, 1  # the ends of the grid
    present = np.ones(sets.priority.shape, bool)
    drawn = data.Sets(sets.priority, sets.label, present, sets.query, sets.answer)
    logits, answers = truth(head.weights, drawn, scaled=head.scaled)
    fast = head.logits(sets)
    # float32 rounds logits in the hundreds to 6e-5, in sums of 128.
    np.testing.assert_allclose(fast, logits, atol=1e-3)
    np.testing.assert_array_equal(head.answers(sets, sx.softmax(fast)), answers)


def test_sets_are_like_those_of_the_experiment():
    sets = draw_sets(0, 200, 64)
    assert sets.priority.min() >= 0
    assert sets.priority.max() < 1
    assert set(np.unique(sets.label)) == set(range(10))
    assert (pick(sets.priority, sets.highest) == sets.priority.max(1)).all()


def test_plain_attention_as_a_policy_changes_nothing():
    plain = attend_plain(0, 64)
    same = attend(0, 64, sx.Constant(1.0))
    np.testing.assert_allclose(same.weights, plain.weights, rtol=1e-6)
    np.testing.assert_array_equal(same.right, plain.right)


def test_a_policy_equals_adaptive_temperature_of_the_library():
    _, logits = sets_and_logits(0, 256)
    weights = attend(0, 256, sx.PAPER).weights
    expected = sx.adaptive_temperature_softmax(logits.astype(np.float64))
    np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_sharpening_sharpens():
    plain, sharp = attend_plain(0, 1024), attend(0, 1024, sx.Constant(3.0))
    assert (sharp.entropy < plain.entropy).all()
    assert sharp.maximum_weight.mean() > plain.maximum_weight.mean()
    assert (sharp.inverse_temperature == 3.0).all()


def test_heads_disperse_as_sets_grow():
    few, many = (attend_plain(0, items) for items in (16, 2048))
    assert few.right.mean() > 0.95
    assert few.right.mean() > many.right.mean() + 0.1
    assert few.maximum_weight.mean() > many.maximum_weight.mean()


def test_a_perfect_ranking_bounds_every_temperature():
    """With all weight on the largest logit the head is right about as often as it ranks right."""
    hard = attend(0, 256, sx.Constant(1e4)).right.mean()
    assert hard == pytest.approx(ranks_correctly(0, 256).mean(), abs=0.03)
    assert 0.5 < hard < 1
