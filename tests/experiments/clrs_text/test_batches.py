"""Batches: each sample once an epoch, small sizes first, labels on answers only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clrs_text.small import TINY
from sharpmax.experiments.clrs_text.tokens import Example

from sharpmax.experiments.clrs_text.batches import IGNORED, Schedule, collate, cut

EXAMPLES = [
    Example(tuple(range(10, 13 + place % 5)), (1,) * (1 + place % 3), size)
    for place, size in enumerate([4, 5, 9] * 8)
]
PLAIN = replace(TINY, growing=0.0, steps=100)


SIZES = [example.size for example in EXAMPLES]


def test_every_sample_once_an_epoch_in_another_order():
    schedule = Schedule(SIZES, PLAIN, seed=0)
    epochs = [[place for step in range(at, at + 6) for place in schedule.at(step)] for at in (0, 6)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(24))] * 2
    assert epochs[0] != epochs[1]
    other = [place for step in range(6) for place in Schedule(SIZES, PLAIN, seed=1).at(step)]
    assert other != epochs[0]


def test_a_step_depends_on_nothing_but_its_number():
    one, other = (Schedule(SIZES, PLAIN, seed=3) for _ in range(2))
    before = [one.at(step) for step in range(20)]
    assert [other.at(step) for step in (19, 7, 0)] == [before[19], before[7], before[0]]


def lengths(*sizes):
    return [Example((0,) * (size - 1), (1,)) for size in sizes]


def test_a_step_is_cut_by_length():
    groups = cut(EXAMPLES[:7], 2)
    assert [len(some) for some in groups] == [2, 2, 2, 1]
    ordered = [one for some in groups for one in some]
    assert ordered == sorted(EXAMPLES[:7], key=lambda one: one.length, reverse=True)
    assert ordered != EXAMPLES[:7]


def test_what_is_of_another_length_is_computed_apart():
    found = cut(lengths(6, 100, 60, 7, 59, 10, 5), 4)
    assert [[one.length for one in some] for some in found] == [[100, 60], [59], [10, 7, 6], [5]]


def test_what_goes_to_several_devices_stays_together():
    found = cut(lengths(100, 7, 60, 59, 10, 6), 4, together=2)
    assert [[one.length for one in some] for some in found] == [[100, 60], [59, 10], [7, 6]]
    assert all(len(some) % 2 == 0 for some in cut(EXAMPLES, 6, together=2))


def test_sizes_are_let_in_from_the_smallest():
    growing = Schedule(SIZES, replace(PLAIN, growing=0.6), 0)
    assert [growing.largest(step) for step in (0, 34, 35, 48, 49, 60, 99)] == [4, 4, 5, 5, 9, 9, 9]
    for step in range(100):
        assert max(EXAMPLES[place].size for place in growing.at(step)) <= growing.largest(step)
    assert {EXAMPLES[place].size for place in growing.at(50)} > {4}


def test_labels_are_what_follows_and_only_of_answers():
    batch = collate([Example((7, 8, 9), (3, 1)), Example((7, 9), (4, 5, 6, 1))], pad=0)
    assert batch.tokens.tolist() == [[7, 8, 9, 3, 0], [7, 9, 4, 5, 6]]
    assert batch.labels.tolist() == [[IGNORED, 3, 1, IGNORED], [4, 5, 6, 1]]
    assert batch.kept == 4
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64


@pytest.mark.parametrize("step", [0, 99])
def test_the_rate_rises_and_falls(step):
    training = replace(PLAIN, warm_up=10, learning_rate=1.0)
    assert training.rate(step) == pytest.approx({0: 0.1, 99: 0.0}[step], abs=1e-3)
    assert training.rate(10) > 0.95
