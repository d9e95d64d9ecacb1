"""What an evaluation knows so far, and the file that keeps it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharpmax.hf.checkpoint import left_behind
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float, Int

KIND = "evaluation-part"
KEEP_EVERY = 5.0
"""Seconds between two times that it is kept."""


@dataclass
class Marks:
    """By length, arm, prompt and question; -1 and NaN where nothing is known."""

    right: Int[np.ndarray, "lengths arms prompts questions"]
    log_probability: Float[np.ndarray, "lengths arms prompts questions"]

    @staticmethod
    def empty(*shape: int) -> Marks:
        return Marks(np.full(shape, -1, np.int8), np.full(shape, np.nan))


@dataclass
class Keeper:
    """Keeps what is known in a file, so that an evaluation that was killed goes on to the same
    numbers.
    """

    path: Path | None
    config: dict[str, Any]
    marks: Marks
    last: float

    @staticmethod
    def open(path: str | Path | None, config: dict[str, Any], marks: Marks) -> Keeper:
        """With what an evaluation of the same config has left there in the marks."""
        left = None if path is None else left_behind(Path(path), KIND, config)
        if left is not None:
            marks.right[...] = left.arrays["right"]
            marks.log_probability[...] = left.arrays["log_probability"]
        return Keeper(None if path is None else Path(path), config, marks, time.monotonic())

    def keep(self, now: bool = False) -> None:
        if self.path is None or (not now and time.monotonic() - self.last < KEEP_EVERY):
            return
        part = Result(
            kind=KIND,
            config=self.config,
            seeds=(self.config["seed"],),
            measurements={},
            provenance=Stopwatch().provenance(),
        )
        arrays = {"right": self.marks.right, "log_probability": self.marks.log_probability}
        part.with_arrays(**arrays).save(self.path, overwrite=True)
        self.last = time.monotonic()
