"""Other policies on the same heads: what counts as better, and the published comparison."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax as sx
from sharpmax import report
from sharpmax.experiments.max_retrieval import policy_comparison, polynomial_fit
from sharpmax.experiments.max_retrieval.policy_comparison import EntropyTarget
from sharpmax.results import Result

ROOT = Path(__file__).parents[3]


def test_an_entropy_target_is_reached_and_only_from_above(rng):
    logits = jnp.asarray(rng.normal(size=(6, 50)) * 2, jnp.float32)
    everything = jnp.ones(logits.shape, bool)
    target = jax.jit(lambda logits, nats: EntropyTarget(nats)(logits, where=everything))
    weights = target(logits, 1.0)
    entropy = -(weights * jnp.log(jnp.maximum(weights, 1e-30))).sum(1)
    np.testing.assert_allclose(entropy, 1.0, atol=1e-3)
    sharp = 20 * logits
    np.testing.assert_allclose(target(sharp, 3.9), sx.softmax(sharp), atol=1e-6)
    equal = jnp.zeros((6, 50), jnp.float32)
    assert np.isfinite(target(equal, 0.5)).all()


def test_a_policy_that_loses_more_than_a_point_at_any_size_does_not_keep_the_guard():
    mean = {"plain": np.asarray([1.0, 0.9]), "good": [0.995, 0.95], "bad": [1.0, 0.88]}
    assert policy_comparison.keeps_guard(mean) == {"plain": True, "good": True, "bad": False}


def test_every_policy_has_a_method():
    fits = {"refitted-temperature": sx.Polynomial((1.5,))}
    methods = policy_comparison.build_methods(fits, 0.5, 16)
    assert methods["plain"] is sx.softmax
    assert methods["paper"].policy == sx.PAPER
    assert methods["refitted-temperature"].policy == sx.Polynomial((1.5,))
    assert methods["log-length"].policy == sx.LogLength(16)
    assert methods["entropy-target"] == EntropyTarget(0.5)


@pytest.fixture(scope="module")
def compared(inline_jobs):
    config = policy_comparison.Config(
        sizes=(1_024,),
        sets=20,
        fit=polynomial_fit.Config(sizes=(1_024,), sets=40, seeds=(2,)),
        seeds=(0, 1),
    )
    return policy_comparison.run(config)


@pytest.mark.slow
def test_every_method_is_tried_on_both_tasks(compared, capsys):
    measured = compared.measurements
    for task in policy_comparison.TASKS:
        assert list(measured["tasks"][task]["mean"]) == list(measured["keeps_guard"])
        assert np.shape(measured["tasks"][task]["accuracy"]["plain"]) == (2, 1)
    assert measured["keeps_guard"]["plain"]
    assert not measured["keeps_guard"]["argmax"]
    report.show(compared)
    assert "Kept" in capsys.readouterr().out


def test_the_published_comparison_is_of_full_size():
    compared = Result.load(ROOT / "results" / "policies.json")
    assert compared.config["sets"] == 1_024
    for task, seeds in (("max", 10), ("most-frequent", 4)):
        assert len(compared.measurements["tasks"][task]["accuracy"]["plain"]) == seeds
    assert compared.measurements["sizes"][-1] == 16_384
