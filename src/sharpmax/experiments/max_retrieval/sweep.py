"""Training and examining many heads, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sharpmax._errors import UserError
from sharpmax.experiments import jobs
from sharpmax.experiments.max_retrieval.exam import Exam, Marks, examine
from sharpmax.experiments.max_retrieval.settings import Training
from sharpmax.experiments.max_retrieval.train import Job, Trained, train

Progress = Callable[[str, int, int, float], None]
"""Called with what is going on, how many jobs it has, the place of one of them and the share of it
that is done."""


def train_all(
    trainings: Sequence[tuple[Training, int]],
    folder: Path,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[Trained]:
    """A head for every pair of settings and seed; checkpoints are kept in the folder."""
    wanted = [Job(training, seed, folder) for training, seed in trainings]
    told = about("training", wanted, progress)
    trained = jobs.run(train, wanted, processes=processes, progress=told)
    for one, (training, seed) in zip(trained, trainings, strict=True):
        if one.diverged:
            raise UserError(f"training diverged (seed {seed}): a loss of {training} is not finite")
    return trained


def examine_all(
    exams: Sequence[Exam],
    processes: int | None = None,
    progress: Progress | None = None,
    what: str = "examining",
) -> list[Marks]:
    """The marks of every exam."""
    told = about(what, exams, progress)
    return jobs.run(examine, exams, processes=processes, progress=told)


def about(what: str, wanted: Sequence[Any], progress: Progress | None) -> jobs.Progress | None:
    if progress is None:
        return None
    return lambda place, share: progress(what, len(wanted), place, share)
