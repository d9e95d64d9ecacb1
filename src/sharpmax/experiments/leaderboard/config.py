"""Settings of the leaderboard."""

from __future__ import annotations

from dataclasses import dataclass, field

from sharpmax.experiments.leaderboard.entries import BASELINE, METHODS, TASKS, TRACKS, Entry
from sharpmax.experiments.leaderboard.trial import Budget


@dataclass(frozen=True)
class Config:
    """Settings of the leaderboard."""

    budget: Budget = field(default_factory=Budget)
    """The training and evaluation that every method gets."""
    tracks: tuple[str, ...] = tuple(TRACKS)
    """Names of `entries.TRACKS`."""
    tasks: tuple[str, ...] = TASKS
    """Names of `entries.TASKS`."""
    methods: tuple[str, ...] = METHODS
    """Names of `entries.METHODS`; softmax is always added."""
    rounds: int = 7
    """Rounds of timing."""

    def entries(self) -> list[Entry]:
        """List the rows of the leaderboard.

        Returns:
            All rows, also of methods that cannot take part; softmax is in all tracks.
        """
        methods = dict.fromkeys([BASELINE, *self.methods])
        return [
            Entry(track, task, method)
            for task in self.tasks
            for track in self.tracks
            for method in methods
        ]


QUICK = Config(
    Budget(steps=600, rates=(3e-3,), seeds=(0,), sizes=(16, 64, 256, 1_024), sets=64),
    tasks=("max",),
    rounds=2,
)
"""Minutes instead of an hour: not enough to rank methods."""
