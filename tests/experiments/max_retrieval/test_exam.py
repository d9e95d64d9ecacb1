"""Exams: every method on the same sets, in pieces, as if each had been asked by itself."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax as sx
from sharpmax.experiments.max_retrieval import data, exam, heads, model
from sharpmax.experiments.max_retrieval.designs import DESIGNS
from sharpmax.experiments.max_retrieval.exam import EntropyTarget, Exam
from sharpmax.experiments.max_retrieval.model import Design
from sharpmax.normalisers import AdaptiveTemperature, Hard

METHODS = {
    "plain": sx.softmax,
    "paper": AdaptiveTemperature(sx.PAPER),
    "target": EntropyTarget(0.3),
    "argmax": Hard(),
}
SIZES = (300,)
SETS = 40


@pytest.fixture(scope="module")
def weights():
    return heads.load("max").of(1)


def rounding(logits):
    """Trained logits are in the hundreds, and sums of 128 products of float32: a logit is off by a
    few units in its last place, and so is an exponent, times an inverse temperature of up to ten.
    """
    return 10 * 4 * np.finfo(np.float32).eps * float(np.abs(logits).max())


def ask(weights, **changed):
    asked = Exam(weights, True, "max", 7, SIZES, SETS, METHODS)._replace(**changed)
    return exam.examine(asked)


@pytest.fixture(scope="module")
def marks(weights):
    return ask(weights)


def test_marks_are_those_of_the_model_asked_by_itself(weights, marks):
    """The very sets, drawn again, through the model as it is trained."""
    for place, size in enumerate(SIZES):
        key = jax.random.fold_in(jax.random.key(exam.EXAMINING + 7), size)
        (count, *rest) = exam.portions(SETS, size)
        sets = data.draw("max", jax.random.fold_in(key, 0), count, size, size)
        (logits,) = jax.jit(partial(model.look, scaled=True))(weights, sets).logits
        best = np.asarray(sets.priority).argmax(1)
        for name, method in METHODS.items():
            asked = jax.jit(partial(model.forward, design=Design(method), scaled=True))
            said = np.asarray(asked(weights, sets)).argmax(1)
            given = np.asarray(method(logits, where=sets.present))
            differ = marks.right[name][place, :count] != (said == np.asarray(sets.answer))
            assert differ.sum() <= 1  # a tie may be decided by rounding
            np.testing.assert_allclose(
                marks.weight[name][place, :count],
                given[np.arange(count), best],
                atol=rounding(logits),
            )
            np.testing.assert_allclose(
                marks.sharpness[name][place, :count],
                given.max(1) / given.sum(1),
                atol=rounding(logits),
            )
        np.testing.assert_allclose(
            marks.entropy[place, :count], sx.entropy(logits), atol=rounding(logits)
        )
        np.testing.assert_array_equal(
            marks.found[place, :count], np.asarray(logits).argmax(1) == best
        )
        assert rest  # more than one portion


def test_pieces_change_nothing(weights, marks, monkeypatch):
    methods = {name: METHODS[name] for name in ("plain", "argmax")}
    monkeypatch.setattr(exam, "PIECE", 64)  # five, the last one short
    exam._mark.clear_cache()
    cut = ask(weights, sizes=(300,), methods=methods)
    exam._mark.clear_cache()
    for name in methods:
        assert (marks.right[name][0] != cut.right[name][0]).sum() <= 1
        np.testing.assert_allclose(marks.weight[name][0], cut.weight[name][0], atol=rounding(300.0))


@pytest.mark.parametrize("name", ["differential", "stieltjes", "layer-norm", "step", "linear"])
def test_a_head_of_another_design_is_asked_as_it_was_trained(name):
    """Two rows of logits, learned fields, other layers, weights of either sign; in pieces."""
    design = DESIGNS[name]
    fresh = model.initial(jax.random.key(4), design)
    moved = {key: value + 0.1 if "normaliser" in key else value for key, value in fresh.items()}
    asked = Exam(moved, True, "max", 7, (1_500,), 6, {"own": design.normaliser}, design)
    found = exam.examine(asked)
    for place, size in enumerate(asked.sizes):
        key = jax.random.fold_in(jax.random.key(exam.EXAMINING + 7), size)
        count = exam.portions(6, size)[0]
        sets = data.draw("max", jax.random.fold_in(key, 0), count, size, size)
        said = np.asarray(model.forward(moved, sets, design, scaled=True)).argmax(1)
        right = said == np.asarray(sets.answer)
        assert (found.right["own"][place, :count] != right).sum() <= 1
        rows = model.look(moved, sets, design, scaled=True).logits
        given = np.abs(model.bound(moved, design)(*rows, where=sets.present))
        np.testing.assert_allclose(
            found.sharpness["own"][place, :count], given.max(1) / given.sum(1), rtol=1e-3
        )


def test_portions_add_up():
    for sets, size in [(1_024, 16), (1_000, 300), (7, 16_384), (1, 1), (3, 4_000)]:
        shares = exam.portions(sets, size)
        assert sum(shares) == sets
        assert max(shares) * size <= max(exam.ITEMS_AT_ONCE, size)


def test_a_trained_head_is_good_at_what_it_was_trained_on(weights):
    found = ask(weights, sizes=(5,), methods={"plain": sx.softmax})
    assert found.right["plain"].mean() > 0.9


def test_within_a_class_the_highest_has_the_largest_logit(weights):
    """So an argmax that is not the maximum never has its class by luck."""
    found = ask(weights, sizes=(4_096,), sets=40, methods={"plain": sx.softmax})
    assert 0.3 < found.ranked.mean() < 1
    np.testing.assert_array_equal(found.ranked, found.found)


def test_an_entropy_target_is_reached_and_only_from_above(rng):
    logits = jnp.asarray(rng.normal(size=(6, 50)) * 2, jnp.float32)
    everything = jnp.ones(logits.shape, bool)
    given = EntropyTarget(1.0)(logits, where=everything)
    spread = -(given * jnp.log(jnp.maximum(given, 1e-30))).sum(1)
    np.testing.assert_allclose(spread, 1.0, atol=1e-3)
    sharp = 20 * logits
    np.testing.assert_allclose(
        EntropyTarget(3.9)(sharp, where=everything), sx.softmax(sharp), atol=1e-6
    )
    equal = jnp.zeros((1, 8), jnp.float32)
    assert np.isfinite(EntropyTarget(0.5)(equal, where=jnp.ones((1, 8), bool))).all()


def test_other_seeds_see_other_sets(weights):
    one, other = (ask(weights, seed=seed, sizes=(16,)).entropy for seed in (1, 2))
    assert not np.array_equal(one, other)
