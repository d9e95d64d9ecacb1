"""One trained model in one arm: which questions it answers, and how sharp its heads are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text import decode
from sharpmax.experiments.clrs_text.arms import Arm, Subject
from sharpmax.experiments.clrs_text.data import Sample
from sharpmax.experiments.clrs_text.model import Ready, check_room, opened
from sharpmax.experiments.clrs_text.tokens import Example
from sharpmax.hf.scan.forward import Selection, measure_forward_pass
from sharpmax.results import Result

WHOLE_NUMBER = r"(?<![\d.])\d+(?![\d.])"


@dataclass(frozen=True)
class Trained:
    """A model that `train` finished."""

    folder: Path
    record: Result

    @property
    def attention(self) -> str:
        return str(self.record.config["training"]["attention"])

    @property
    def seed(self) -> int:
        return self.record.seeds[0]

    def sizes(self, algorithm: str) -> list[int]:
        """That it was trained at."""
        found: dict[str, list[int]] = self.record.measurements["sizes"]
        return found.get(algorithm, [])


def finished(folder: Path) -> list[Trained]:
    """The trained models of a folder."""
    records = sorted(folder.glob("*/training.json"))
    if not records:
        raise UserError(f"{folder} holds no finished training: run sharpmax clrs train first")
    return [Trained(path.parent, Result.load(path)) for path in records]


def is_familiar(sample: Sample, trained_to: int) -> bool:
    """Whether an answer names no item that problems of the sizes trained at do not have.

    A model that was trained on up to 16 items was never asked to say `16`: that it does not is
    another failure than dispersion.
    """
    return all(int(index) < trained_to for index in re.findall(WHOLE_NUMBER, sample.answer))


@dataclass(frozen=True)
class Exam:
    """How to test."""

    samples: Sequence[Sample]
    calibration: Sequence[Sample] = ()
    entropy_samples: int = 5
    batch: int = 64
    device: str = "auto"
    dtype: str = "float32"

    def of(self, arm: Arm, trained: Trained, told: Callable[[float], None]) -> dict[str, Any]:
        """All algorithms, each in the arm's context."""
        ready = opened(str(trained.folder / "model"), self.device, self.dtype)
        check_room(ready.model, ready.tokens.examples(self.samples))
        found: dict[str, Any] = {"seed": trained.seed, "right": {}, "entropy": {}, "notes": {}}
        done = 0

        def answered(count: int) -> None:
            nonlocal done
            done += count
            told(0.999 * done / len(self.samples))  # 1 is said when it is on disk

        for algorithm in dict.fromkeys(sample.algorithm for sample in self.samples):
            some = [sample for sample in self.samples if sample.algorithm == algorithm]
            subject = self._subject(ready, trained, algorithm)
            with arm.testing(subject):
                found["right"][algorithm] = self._right(ready, some, subject.trained_to, answered)
                found["entropy"][algorithm] = self._entropy(ready, some)
            found["notes"][algorithm] = subject.notes
        return found

    def _subject(self, ready: Ready, trained: Trained, algorithm: str) -> Subject:
        return Subject(
            ready.model,
            ready.tokens,
            algorithm,
            max(trained.sizes(algorithm), default=0),
            tuple(sample for sample in self.calibration if sample.algorithm == algorithm),
        )

    def _right(
        self,
        ready: Ready,
        samples: list[Sample],
        trained_to: int,
        answered: Callable[[int], None],
    ) -> dict[str, dict[str, list[int]]]:
        """By size and test seed: how many answers were right, and how many were asked for; then the
        same of those whose answer is familiar.
        """
        said = decode.answers(
            ready.model,
            ready.tokens.examples(samples),
            ready.tokens.end,
            batch=self.batch,
            answered=answered,
        )
        found: dict[str, dict[str, list[int]]] = {}
        for sample, tokens in zip(samples, said, strict=True):
            by_seed = found.setdefault(str(sample.size), {})
            counts = by_seed.setdefault(str(sample.seed), [0, 0, 0, 0])
            right = ready.tokens.is_right(sample, tokens)
            known = is_familiar(sample, trained_to)
            for place, one in enumerate((right, True, right and known, known)):
                counts[place] += one
        return found

    def _entropy(self, ready: Ready, samples: list[Sample]) -> dict[str, Any]:
        """By size, [layer, head]: the mean over some questions, at their last token."""
        selection = Selection.create(ready.model)
        found: dict[str, Any] = {}
        for size in dict.fromkeys(sample.size for sample in samples):
            some = [sample for sample in samples if sample.size == size][: self.entropy_samples]
            seen = [_last_entropy(ready, selection, one) for one in ready.tokens.examples(some)]
            if seen:
                found[str(size)] = np.mean(seen, axis=0).tolist()
        return found


def _last_entropy(ready: Ready, selection: Selection, one: Example) -> Any:
    found = measure_forward_pass(ready.model, selection, list(one.question))
    return found.arrays["last_entropy"]
