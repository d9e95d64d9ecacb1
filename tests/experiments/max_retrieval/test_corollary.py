"""The corollary: streamed sums are those of the whole set, and no measured change exceeds a bound."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from report.synthetic_corollary import corollary as synthetic
from sharpmax import report, theory
from sharpmax.experiments.max_retrieval import corollary, data, heads
from sharpmax.experiments.max_retrieval.model import encode, reference
from sharpmax.report.blocks import Table

SMALL = corollary.Config(
    sizes=(16,), sets=6, shares=(1.0, 0.25, 2.0**-6), priorities=11, queries=5, seeds=(0,)
)


@pytest.fixture(scope="module")
def trained():
    found = heads.load("max").only((0,))
    return {name: jnp.asarray(array) for name, array in found.of(0).items()}, found.training.scaled


@pytest.fixture(scope="module")
def measured():
    return corollary.run(SMALL, processes=1).measurements


def test_sets_are_drawn_in_chunks_and_never_held_whole(monkeypatch, trained):
    weights, scaled = trained
    keys = jax.random.split(jax.random.key(3), 4)
    monkeypatch.setattr(corollary, "CHUNK", 8)
    corollary.draw_sets.clear_cache()
    rest = jax.device_get(corollary.draw_sets(weights, keys, 32, scaled))
    corollary.draw_sets.clear_cache()
    for number, key in enumerate(keys):
        priority, label = [], []
        for chunk in range(4):
            ranks, classes = jax.random.split(jax.random.fold_in(key, chunk))
            priority.append(jax.random.uniform(ranks, (1, 8), jnp.float32)[0])
            label.append(jax.random.randint(classes, (1, 8), 0, data.CLASSES, jnp.int32)[0])
        priority, label = np.concatenate(priority), np.concatenate(label)
        highest = int(priority.argmax())
        assert (rest.priority[number], rest.label[number]) == (priority[highest], label[highest])
        others = np.arange(32) != highest
        items = corollary._one_set(
            jnp.asarray(priority[None, others]), jnp.asarray(label[None, others]),
            jnp.asarray(rest.query[number]),
        )  # fmt: skip
        encoded = encode(weights, items, scaled=scaled)
        logits = np.asarray(encoded.logits[0][0], np.float64)
        parts = np.exp(logits - logits.max())
        assert rest.largest[number] == pytest.approx(logits.max(), rel=1e-6)
        assert rest.total[number] == pytest.approx(parts.sum(), rel=1e-5)
        np.testing.assert_allclose(
            rest.pooled[number], parts @ np.asarray(encoded.hidden[0]), rtol=1e-4, atol=1e-5
        )


def test_answers_are_those_of_the_model(trained):
    weights, scaled = trained
    key = jax.random.split(jax.random.key(5), 1)
    rest = jax.device_get(corollary.draw_sets(weights, key, 16, scaled))
    ranks, classes = jax.random.split(jax.random.fold_in(key[0], 0))
    priority = jax.random.uniform(ranks, (1, 16), jnp.float32)
    label = jax.random.randint(classes, (1, 16), 0, data.CLASSES, jnp.int32)
    answers = []
    for choice in range(data.CLASSES):
        changed = label.at[0, int(priority.argmax())].set(choice)
        items = corollary._one_set(priority, changed, jnp.asarray(rest.query[0]))
        answers.append(int(jnp.argmax(reference(weights, items, scaled=scaled))))
    found = corollary._exchange(weights, rest, scaled)
    assert found["follows"] == float(answers == list(range(data.CLASSES)))
    assert found["accuracy"] == float(answers[int(rest.label[0])] == int(rest.label[0]))


def test_no_change_exceeds_its_bound(measured):
    (changes,), (bounds,) = measured["largest_change"], measured["largest_change_bound"]
    assert all(change <= bound for change, bound in zip(changes, bounds, strict=True))
    (accuracy,) = measured["accuracy"]
    assert accuracy[0] >= 5 / 6  # sizes that the head was trained on


def test_coarser_types_ignore_the_item_earlier(measured):
    (certain,) = measured["ignored_from"]
    assert measured["types"] == ["float64", "float32", "float16", "bfloat16"]
    assert certain == sorted(certain, reverse=True)


def test_the_best_share_of_rivals_decides():
    shares, spreads = np.array([1.0, 0.25]), np.array([40.0, 2.0])
    items = corollary.items_until_ignored(shares, spreads, 1.0, 2.0**-7)
    rivals = theory.items_until_ignored(2.0, 1.0, 2.0**-7)
    expected = items * 0.25
    assert expected - corollary.DEVIATIONS * np.sqrt(expected) == pytest.approx(rivals, rel=0.01)
    assert items < theory.items_until_ignored(40.0, 1.0, 2.0**-7)
    # From there on the bound is below what the type can tell apart, and just before it is not.
    assert corollary.bound_change(round(1.02 * items), shares, spreads, 1.0) < 2.0**-7
    assert corollary.bound_change(round(0.98 * items), shares, spreads, 1.0) > 2.0**-7


def test_extremes_hold_for_random_items(trained):
    weights, scaled = trained
    spreads, diameter = corollary.find_extremes(weights, scaled, SMALL)
    assert (np.diff(spreads) < 0).all()  # fewer and higher items are closer together
    generator = np.random.default_rng(0)
    for share, spread in zip(SMALL.shares, spreads, strict=True):
        items = corollary._one_set(
            jnp.asarray(generator.uniform(1 - share, 1, (1, 500)), jnp.float32),
            jnp.asarray(generator.integers(0, 10, (1, 500)), jnp.int32),
            jnp.asarray(generator.choice(np.linspace(0, 1, SMALL.queries)), jnp.float32),
        )
        encoded = encode(weights, items, scaled=scaled)
        assert float(jnp.ptp(encoded.logits[0])) <= 1.02 * spread
        values = corollary._values(weights, np.asarray(encoded.hidden[0], np.float64))
        distances = np.linalg.norm(values[:100, None] - values[None, :100], axis=-1)
        assert distances.max() <= 1.02 * diameter


def test_sizes_that_are_not_whole_chunks_are_refused(trained):
    weights, scaled = trained
    with pytest.raises(ValueError, match="size 10000 is not a multiple of 8192"):
        corollary.draw_sets(weights, jax.random.split(jax.random.key(0), 1), 10_000, scaled)


def test_the_report_says_from_where_on_the_answer_cannot_depend_on_it(tmp_path):
    result = synthetic()
    content = report.describe(result)
    text = " ".join(content.sentences)
    assert "of 16 items in 97.5 % of sets, and of 1,024 items in 15.0 %" in text
    assert "no head's answer follows it in all ten cases from 256 items on" in text
    assert "In bfloat16 no exchange of the highest item can change what the head returns" in text
    assert "from 1,000 items on for the first of the heads, from 2,000 for the last" in text
    certain = next(b for b in content.blocks if isinstance(b, Table) and "certain" in b.title)
    assert [cell.text for cell in certain.rows[1][1:]] == [
        "\N{EN DASH}",
        "10^9.3",
        "10^7.3",
        "2,000",
    ]
    assert report.save_picture(report.draw(result), tmp_path / "picture", overwrite=False)
    report.show(result)
