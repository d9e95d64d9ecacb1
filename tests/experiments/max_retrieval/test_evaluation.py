"""Evaluation: every method answers the same sets, as if the model had been asked alone."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from scipy import stats

import sharpmax as sx
from sharpmax.experiments.max_retrieval import evaluation, heads, model
from sharpmax.experiments.max_retrieval.evaluation import Evaluation, EvaluationJob
from sharpmax.experiments.max_retrieval.model import DESIGNS, Design
from sharpmax.normalisers import AdaptiveTemperature, Hard

METHODS = {
    "plain": sx.softmax,
    "paper": AdaptiveTemperature(sx.PAPER),
    "argmax": Hard(),
}
SIZE, SETS = 300, 26  # two portions


@pytest.fixture(scope="module")
def weights():
    return heads.load("max").of(1)


def rounding(logits):
    """Trained logits are in the hundreds, and sums of 128 products of float32: a logit is off by a
    few units in its last place, and so is an exponent, times an inverse temperature of up to ten.
    """
    return 10 * 4 * np.finfo(np.float32).eps * float(np.abs(logits).max())


def evaluate(weights, **changes):
    job = EvaluationJob(weights, True, "max", 7, (SIZE,), SETS, METHODS)._replace(**changes)
    return evaluation.evaluate_head(job)


def first_portion(size, sets):
    """The sets of the first portion, drawn again."""
    key = jax.random.fold_in(jax.random.key(evaluation.EVALUATION_SEED + 7), size)
    count = evaluation.split_sets(sets, size)[0]
    return evaluation._draw("max", jax.random.fold_in(key, 0), count, size), count


@pytest.fixture(scope="module")
def evaluated(weights):
    shares = []
    job = EvaluationJob(weights, True, "max", 7, (SIZE,), SETS, METHODS)
    result = evaluation.evaluate_head(job, shares.append)
    return result, shares


def test_answers_and_weights_are_those_of_the_model(weights, evaluated):
    result, shares = evaluated
    sets, count = first_portion(SIZE, SETS)
    assert 0 < count < SETS  # more than one portion
    (logits,) = jax.jit(partial(model.encode, scaled=True))(weights, sets).logits
    best = np.asarray(sets.priority).argmax(1)
    for name, method in METHODS.items():

        @jax.jit
        def expect(weights, sets, method=method):
            attention = method(logits, where=sets.present)
            return model.forward(weights, sets, Design(method), scaled=True), attention

        classes, attention = map(np.asarray, expect(weights, sets))
        correct = classes.argmax(1) == np.asarray(sets.answer)
        assert (result.correct[name][0, :count] != correct).sum() <= 1  # a tie, by rounding
        for measured, expected in (
            (result.weight[name], attention[np.arange(count), best]),
            (result.sharpness[name], attention.max(1) / attention.sum(1)),
        ):
            np.testing.assert_allclose(measured[0, :count], expected, atol=rounding(logits))
    np.testing.assert_allclose(result.entropy[0, :count], sx.entropy(logits), atol=rounding(logits))
    top = np.asarray(logits).argmax(1)
    np.testing.assert_array_equal(result.argmax_is_maximum[0, :count], top == best)
    np.testing.assert_array_equal(
        result.argmax_correct[0, :count],
        np.asarray(sets.label)[np.arange(count), top] == np.asarray(sets.answer),
    )
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("name", ["softmax", "stieltjes", "differential"])
def test_large_sets_give_the_same_answers_without_their_hidden_vectors(name, monkeypatch):
    """Of several chunks, the last one partly empty; also for two rows of logits."""
    design = DESIGNS[name]
    weights = {
        key: np.asarray(array)
        for key, array in model.initial_weights(jax.random.key(0), design).items()
    }
    changes = {"design": design, "sizes": (2_500,), "sets": 3, "task": "max"}
    changes |= {"methods": {name: design.normaliser}}
    whole = evaluate(weights, **changes)
    monkeypatch.setattr(evaluation, "HELD_ITEMS", 0)
    jax.clear_caches()
    streamed = evaluate(weights, **changes)
    np.testing.assert_array_equal(streamed.correct[name], whole.correct[name])
    np.testing.assert_allclose(streamed.weight[name], whole.weight[name], rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(streamed.entropy, whole.entropy, rtol=1e-4)


def test_chunks_change_nothing(weights, evaluated, monkeypatch):
    methods = {name: METHODS[name] for name in ("plain", "argmax")}
    monkeypatch.setattr(evaluation, "CHUNK", 64)  # five chunks, the last one short
    evaluation._answer.clear_cache()
    chunked = evaluate(weights, methods=methods)
    evaluation._answer.clear_cache()
    for name in methods:
        assert (evaluated[0].correct[name] != chunked.correct[name]).sum() <= 1
        np.testing.assert_allclose(
            evaluated[0].weight[name], chunked.weight[name], atol=rounding(300.0)
        )


@pytest.mark.parametrize(
    "name",
    [
        "differential",  # two rows of logits, a learned field, weights of either sign
        "layer-norm",  # another layer
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("stieltjes", "step", "linear", "entmax", "sigmoid")
        ),
    ],
)
def test_heads_of_other_designs_are_evaluated_as_they_were_trained(name):
    design, size = DESIGNS[name], 1_100  # more than one chunk
    fresh = jax.jit(model.initial_weights, static_argnums=1)(jax.random.key(4), design)
    moved = {key: value + 0.1 if "normaliser" in key else value for key, value in fresh.items()}
    job = EvaluationJob(moved, True, "max", 7, (size,), 3, {"own": design.normaliser}, design)
    result = evaluation.evaluate_head(job)
    sets, count = first_portion(size, 3)

    @jax.jit
    def expect(weights, sets):
        rows = model.encode(weights, sets, design, scaled=True).logits
        attention = model.bind_normaliser(weights, design)(*rows, where=sets.present)
        return model.forward(weights, sets, design, scaled=True), attention

    classes, attention = expect(moved, sets)
    correct = np.asarray(classes).argmax(1) == np.asarray(sets.answer)
    assert (result.correct["own"][0, :count] != correct).sum() <= 1
    size = np.abs(attention)
    np.testing.assert_allclose(
        result.sharpness["own"][0, :count], size.max(1) / size.sum(1), rtol=1e-3
    )


def test_portions_add_up():
    for sets, size in [(1_024, 16), (1_000, 300), (7, 16_384), (1, 1), (3, 4_000)]:
        portions = evaluation.split_sets(sets, size)
        assert sum(portions) == sets
        assert max(portions) * size <= max(evaluation.ITEMS_AT_ONCE, size)


def test_a_trained_head_is_good_at_what_it_was_trained_on_and_seeds_draw_other_sets(weights):
    plain = {"plain": sx.softmax}
    first, second = (evaluate(weights, seed=s, sizes=(5,), methods=plain) for s in (1, 2))
    assert first.correct["plain"].mean() > 0.9
    assert not np.array_equal(first.entropy, second.entropy)


@pytest.mark.slow
def test_within_a_class_the_highest_priority_has_the_largest_logit(weights):
    """So an argmax that is not the maximum never has its class by luck."""
    result = evaluate(weights, sizes=(4_096,), sets=40, methods={"plain": sx.softmax})
    assert 0.3 < result.argmax_correct.mean() < 1
    np.testing.assert_array_equal(result.argmax_correct, result.argmax_is_maximum)


def test_a_job_per_head_has_its_weights_task_and_seed():
    trained = heads.load("most-frequent").only((2, 0))
    jobs = evaluation.jobs_for_heads(trained, (16,), 5, METHODS, seed_offset=100)
    assert [(job.seed, job.task, job.sizes, job.sets) for job in jobs] == [
        (102, "most-frequent", (16,), 5),
        (100, "most-frequent", (16,), 5),
    ]
    np.testing.assert_array_equal(jobs[0].weights["key"], trained.of(2)["key"])


def test_every_wrong_answer_has_one_cause():
    correct = np.asarray([[True, True, False, False, False, True]])
    ranked = np.asarray([[True, False, True, True, False, True]])
    result = Evaluation({"own": correct}, {}, {}, np.zeros((1, 6)), ranked, ranked)
    causes = evaluation.attribute_errors([result, result], "own")
    assert {name: share.tolist() for name, share in causes.items()} == {
        "dispersion": [pytest.approx(2 / 6)],
        "ranking": [pytest.approx(1 / 6)],
        "right_by_luck": [pytest.approx(1 / 6)],
    }
    np.testing.assert_allclose(evaluation.accuracies([result, result], "own"), [[0.5], [0.5]])


def test_the_paired_test_is_that_of_scipy(rng):
    first, second = rng.normal(size=(2, 10, 4))
    expected = stats.ttest_rel(second, first).pvalue
    np.testing.assert_allclose(evaluation.paired_p(first, second), expected)


def test_one_seed_or_equal_differences_have_no_spread_and_no_p(rng):
    same = rng.normal(size=(10, 2))
    assert evaluation.paired_p(same, same) == [None, None]
    assert evaluation.paired_p(same[:1], same[1:2]) == [None, None]
    assert evaluation.spread(same[:1]) is None
    first, second = np.asarray([[0.1], [0.7]]), np.asarray([[0.3], [0.9]])
    assert np.ptp(second - first) > 0  # by rounding
    assert evaluation.paired_p(first, second) == [None]


def test_the_spread_is_that_of_a_sample():
    assert evaluation.spread(np.asarray([[1.0], [3.0]])) == pytest.approx(2**0.5)


def test_the_sampling_error_of_ten_seeds_is_at_most_half_a_point():
    error = evaluation.sampling_error(np.asarray([0.5, 0.1]), 10 * 1_024)
    assert error[0] < 0.005
    np.testing.assert_allclose(error[1], (0.1 * 0.9 / 10_240) ** 0.5)
