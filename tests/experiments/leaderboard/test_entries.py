"""Every method takes part or has a reason not to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import sharpmax as sx
from sharpmax.experiments.leaderboard.entries import (
    BASELINE,
    LAWS,
    METHODS,
    TASKS,
    TRACKS,
    Entry,
    drop_in_methods,
    reason_against,
)
from sharpmax.experiments.max_retrieval import data
from sharpmax.experiments.max_retrieval.model import DESIGNS, make_design
from sharpmax.normalisers import AdaptiveTemperature, RowNormaliser
from sharpmax.policies import InfoScale

NOT_PUT_IN = ("differential", "thresholded-differential", "layer-norm", "step")

ROOT = Path(__file__).parents[3]


def test_every_normaliser_the_two_layers_and_the_length_laws_are_methods():
    assert set(METHODS) == {*sx.NORMALISERS, "layer-norm", "step", *LAWS}
    assert set(TASKS) == set(data.TASKS)


def test_a_method_that_cannot_take_part_has_a_reason():
    absent = {
        (track, method): reason_against(Entry(track, "max", method))
        for track in TRACKS
        for method in METHODS
        if reason_against(Entry(track, "max", method))
    }
    drop_ins = ("drop-in", "augmented-drop-in")
    assert set(absent) == {
        *((track, "selective") for track in TRACKS),
        *((track, name) for track in drop_ins for name in NOT_PUT_IN),
        *((track, law) for track in ("trained", "augmented") for law in LAWS),
        *((track, "query-aware-scalable-softmax") for track in ("trained", "augmented")),
    }
    assert "as with softmax" in absent["trained", "infoscale"]
    assert "one query" in absent["trained", "selective"]
    assert "second set of logits" in absent["drop-in", "differential"]
    assert "trained without" in absent["drop-in", "step"]


@pytest.mark.parametrize("track", ["augmented", "augmented-drop-in"])
def test_narrow_ranges_say_nothing_about_the_most_frequent_class(track):
    assert "priorities say nothing" in reason_against(Entry(track, "most-frequent", "hard"))


def test_what_is_put_in_is_what_can_be():
    assert set(drop_in_methods()) == set(METHODS) - {"selective", *NOT_PUT_IN}
    assert drop_in_methods()["infoscale"] == AdaptiveTemperature(InfoScale(16, 128))
    assert Entry("drop-in", "max", "hard").trains == BASELINE
    assert Entry("trained", "max", "hard").trains == "hard"


def test_a_normaliser_that_is_added_takes_part():
    """The skeleton of the page on normalisers becomes a design that learns its field."""
    page = (ROOT / "docs" / "normalisers.md").read_text("utf-8")
    assert re.search(r"class Tempered\(RowNormaliser\)", page)

    @dataclass(frozen=True)
    class Tempered(RowNormaliser):
        power: float = 0.5
        parameters: ClassVar[tuple[str, ...]] = ("power",)

    design = make_design(Tempered())
    assert design.normaliser == Tempered()
    assert design.learned == ("power",)
    assert make_design(sx.NORMALISERS["selective"]) is None
    assert DESIGNS["differential"].paired
