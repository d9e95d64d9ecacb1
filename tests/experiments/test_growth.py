"""The demo's table: the same logits, measured, never above the bound."""

from __future__ import annotations

import itertools

import pytest

from sharpmax.experiments import growth


@pytest.fixture(scope="module")
def rows():
    return growth.run().measurements["rows"]


def column(rows, method, name):
    return [row[name] for row in rows if row["method"] == method]


def test_all_sizes_and_methods(rows):
    assert column(rows, "softmax", "items") == [2**power for power in range(4, 15)]
    assert {row["method"] for row in rows} == {"softmax", "adaptive", "hard"}


def test_no_weight_exceeds_its_bound(rows):
    for row in rows:
        assert row["largest_weight"] <= row["largest_weight_allowed"]


def test_the_story_is_in_the_numbers(rows):
    softmax, adaptive = (column(rows, name, "largest_weight") for name in ("softmax", "adaptive"))
    assert all(later < earlier for earlier, later in itertools.pairwise(softmax))
    assert all(sharp >= plain for plain, sharp in zip(softmax, adaptive, strict=True))
    assert adaptive[0] > 1.5 * softmax[0]
    assert adaptive[-1] == softmax[-1]  # the published polynomial has switched itself off
    assert set(column(rows, "hard", "effective_items")) == {1.0}
