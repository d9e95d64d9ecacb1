"""Tracks, tasks and methods of the leaderboard, and why a method cannot take part."""

from __future__ import annotations

from typing import Final, NamedTuple

from sharpmax.experiments.max_retrieval.model import DESIGNS, WIDTH, Normaliser
from sharpmax.normalisers import NORMALISERS, AdaptiveTemperature
from sharpmax.policies import GrokScale, InfoScale, Llama4Scale, LogLength, YarnScale

BASELINE: Final = "softmax"
GUARD: Final = "most-frequent"
TASKS: Final = ("max", "second-max", GUARD)


class Track(NamedTuple):
    """The rules under which methods are compared."""

    own: bool
    """Whether heads are trained with the method, or trained with softmax and then switched."""
    augmented: bool
    """Whether training also has sets with a narrow range of priorities: see `data.draw`."""
    what: str
    """The track in words."""


TRACKS: Final = {
    "drop-in": Track(False, False, "put into a softmax-trained head, at inference only"),
    "trained": Track(True, False, "used in training too, on the paper's data"),
    "augmented": Track(True, True, "trained with, on sets of the same sizes and narrow ranges too"),
    "augmented-drop-in": Track(
        False, True, "put into a softmax-trained head that has seen narrow ranges"
    ),
}

LARGEST: Final = 16
"""Items of the largest set in training: where the laws of the length begin."""

LAWS: Final[dict[str, Normaliser]] = {
    "log-length": AdaptiveTemperature(LogLength(LARGEST)),
    "infoscale": AdaptiveTemperature(InfoScale(LARGEST, WIDTH)),
    "yarn": AdaptiveTemperature(YarnScale(LARGEST)),
    "llama4": AdaptiveTemperature(Llama4Scale(LARGEST)),
    "grok": AdaptiveTemperature(GrokScale(LARGEST)),
}
"""Length laws by their names in `policy_names`. Critical scaling is `scalable-softmax`."""

METHODS: Final = tuple(dict.fromkeys([*NORMALISERS, *DESIGNS, *LAWS]))


NOT_YET: Final = "not measured yet"
"""Why a row of an extended leaderboard has no numbers although its method can take part."""


class Entry(NamedTuple):
    """One row of the leaderboard."""

    track: str
    task: str
    method: str

    @property
    def trains(self) -> str:
        """The design that is trained for this row."""
        return self.method if TRACKS[self.track].own else BASELINE


def reason_against(entry: Entry) -> str | None:
    """Return why a method cannot take part; None if it can."""
    track = TRACKS[entry.track]
    if entry.method in LAWS and track.own:
        return (
            "changes nothing in sets as small as in training: with it, heads train as with softmax"
        )
    if entry.method == "query-aware-scalable-softmax" and track.own:
        return "the query says nothing in a set, so that it would train as scalable-softmax"
    if entry.method not in DESIGNS | LAWS:
        needs = NORMALISERS[entry.method].needs
        return f"needs {needs}; a set has one query, which sees each item once"
    if track.augmented and entry.task == GUARD:
        return "priorities say nothing in this task: it is the same as without narrow ranges"
    if not track.own and entry.method in DESIGNS:
        design = DESIGNS[entry.method]
        if design.paired:
            return "needs a second set of logits, which a softmax-trained head does not have"
        if design.normed or design.stepped:
            return "is a layer, and what follows it was trained without"
    return None


def drop_in_methods() -> dict[str, Normaliser]:
    """Return the methods that can replace softmax in a head that was trained with softmax."""
    return {
        name: LAWS[name] if name in LAWS else DESIGNS[name].normaliser
        for name in METHODS
        if reason_against(Entry("drop-in", "max", name)) is None
    }
