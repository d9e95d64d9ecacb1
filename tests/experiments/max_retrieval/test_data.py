"""Random sets: uniform where they should be, with the right answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax.experiments.max_retrieval import data

draw = jax.jit(data.draw, static_argnums=(0, 2, 3, 4, 5))


@pytest.fixture(scope="module", params=sorted(data.TASKS))
def drawn(request):
    sets = draw(request.param, jax.random.key(5), 4_000, 5, 16)
    return request.param, data.Sets(*(np.asarray(array) for array in sets))


def test_sizes_priorities_and_queries_are_uniform(drawn):
    _, sets = drawn
    sizes = sets.present.sum(1)
    counts = np.bincount(sizes, minlength=17)
    assert set(sizes) == set(range(5, 17))
    assert counts[5:].min() > 4_000 / 12 * 0.8
    assert (np.diff(sets.present.astype(int), axis=1) <= 0).all()  # padding follows the items
    for values in (sets.priority[sets.present], sets.query):
        assert values.min() >= 0
        assert values.max() < 1
        np.testing.assert_allclose(
            np.histogram(values, 4, (0, 1))[0] / values.size, 0.25, atol=0.03
        )


def test_the_answer_is_right(drawn):
    """Compared with a loop over the sets, item by item."""
    task, sets = drawn
    for priority, label, present, answer in zip(
        sets.priority, sets.label, sets.present, sets.answer, strict=True
    ):
        items = [(p, c) for p, c, there in zip(priority, label, present, strict=True) if there]
        if task != "most-frequent":
            assert answer == sorted(items)[-1 if task == "max" else -2][1]
        else:
            counts = np.bincount([c for _, c in items], minlength=data.CLASSES)
            assert counts[answer] == counts.max()
            assert (counts == counts.max()).sum() == 1  # no draw is left


def test_every_answer_is_equally_likely(drawn):
    _, sets = drawn
    shares = np.bincount(sets.answer, minlength=10) / len(sets.answer)
    np.testing.assert_allclose(shares, 0.1, atol=0.02)


def test_few_items_mislead_about_the_most_frequent_class_and_many_do_not():
    sets = draw("most-frequent", jax.random.key(2), 1_000, 400, 400)

    def share_of_first(items):
        label = np.asarray(sets.label[:, :items])
        guess = [np.bincount(row).argmax() for row in label]
        return np.mean(guess == np.asarray(sets.answer))

    assert share_of_first(1) < 0.4
    assert 0.5 < share_of_first(8) < 0.8
    assert share_of_first(100) > 0.97


def test_narrow_ranges_are_the_top_of_a_large_set():
    """Every decade of widths is equally frequent, and the order of the items stays."""
    plain, narrow = (
        draw("max", jax.random.key(3), 4_000, 16, 16, narrowest) for narrowest in (1.0, 1e-3)
    )
    np.testing.assert_array_equal(narrow.answer, plain.answer)
    np.testing.assert_array_equal(narrow.label, plain.label)
    below = (1 - np.asarray(narrow.priority, np.float64)).max(1)
    assert np.asarray(narrow.priority).max() < 1
    widths = below / (1 - np.asarray(plain.priority, np.float64)).max(1)
    shares = np.histogram(np.log10(widths), [-3.001, -2, -1, 0.001])[0] / 4_000
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)


def test_features_are_priority_and_class():
    sets = draw("max", jax.random.key(0), 3, 4, 4)
    seen = np.asarray(data.features(sets))
    assert seen.shape == (3, 4, 11)
    np.testing.assert_array_equal(seen[..., 0], sets.priority)
    np.testing.assert_array_equal(seen[..., 1:].argmax(-1), sets.label)
    np.testing.assert_array_equal(seen[..., 1:].sum(-1), 1)


def test_the_highest_of_equal_items_is_the_first():
    values = jnp.asarray([[1.0, 3.0, 3.0, 9.0]])
    present = jnp.asarray([[True, True, True, False]])
    assert data.argmax_present(values, present).tolist() == [1]
