"""Batches: each sample once per epoch, small sizes first, labels on answers only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clrs_text.small import TINY

from sharpmax.experiments.clrs_text.batches import IGNORED, Schedule, collate, split_by_length
from sharpmax.experiments.clrs_text.tokenization import Example

EXAMPLES = [
    Example(tuple(range(10, 13 + index % 5)), (1,) * (1 + index % 3), size)
    for index, size in enumerate([4, 5, 9] * 8)
]
PLAIN = replace(TINY, growing=0.0, steps=100)


SIZES = [example.size for example in EXAMPLES]


def test_every_sample_once_an_epoch_in_another_order():
    schedule = Schedule(SIZES, PLAIN, seed=0)
    epochs = [
        [place for step in range(at, at + 6) for place in schedule.indices(step)] for at in (0, 6)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(24))] * 2
    assert epochs[0] != epochs[1]
    other = [place for step in range(6) for place in Schedule(SIZES, PLAIN, seed=1).indices(step)]
    assert other != epochs[0]


def test_a_step_depends_on_nothing_but_its_number():
    one, other = (Schedule(SIZES, PLAIN, seed=3) for _ in range(2))
    before = [one.indices(step) for step in range(20)]
    assert [other.indices(step) for step in (19, 7, 0)] == [before[19], before[7], before[0]]


def lengths(*sizes):
    return [Example((0,) * (size - 1), (1,)) for size in sizes]


def test_a_step_is_split_by_length():
    groups = split_by_length(EXAMPLES[:7], 2)
    assert [len(some) for some in groups] == [2, 2, 2, 1]
    ordered = [one for some in groups for one in some]
    assert ordered == sorted(EXAMPLES[:7], key=lambda one: one.length, reverse=True)
    assert ordered != EXAMPLES[:7]


def test_samples_of_different_length_are_computed_separately():
    found = split_by_length(lengths(6, 100, 60, 7, 59, 10, 5), 4)
    assert [[one.length for one in some] for some in found] == [[100, 60], [59], [10, 7, 6], [5]]


def test_groups_are_multiples_of_the_number_of_devices():
    found = split_by_length(lengths(100, 7, 60, 59, 10, 6), 4, together=2)
    assert [[one.length for one in some] for some in found] == [[100, 60], [59, 10], [7, 6]]
    assert all(len(some) % 2 == 0 for some in split_by_length(EXAMPLES, 6, together=2))


def test_sizes_are_added_from_the_smallest():
    growing = Schedule(SIZES, replace(PLAIN, growing=0.6), 0)
    assert [growing.largest_size(step) for step in (0, 34, 35, 48, 49, 60, 99)] == [
        4,
        4,
        5,
        5,
        9,
        9,
        9,
    ]
    for step in range(100):
        assert max(EXAMPLES[place].size for place in growing.indices(step)) <= growing.largest_size(
            step
        )
    assert {EXAMPLES[place].size for place in growing.indices(50)} > {4}


def test_labels_are_what_follows_and_only_of_answers():
    batch = collate([Example((7, 8, 9), (3, 1)), Example((7, 9), (4, 5, 6, 1))], pad=0)
    assert batch.tokens.tolist() == [[7, 8, 9, 3, 0], [7, 9, 4, 5, 6]]
    assert batch.labels.tolist() == [[IGNORED, 3, 1, IGNORED], [4, 5, 6, 1]]
    assert batch.kept == 4
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64


@pytest.mark.parametrize("step", [0, 99])
def test_the_rate_rises_and_falls(step):
    training = replace(PLAIN, warm_up=10, learning_rate=1.0)
    assert training.learning_rate_at(step) == pytest.approx({0: 0.1, 99: 0.0}[step], abs=1e-3)
    assert training.learning_rate_at(10) > 0.95
