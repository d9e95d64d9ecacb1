"""The conditions that are compared: a trained model, and its attention when it is tested.

To compare another method, add an entry to `CONDITIONS`: the attention that its model was trained
with, and a function that returns the context in which the model is tested on an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text.config import ATTENTIONS
from sharpmax.experiments.clrs_text.data import Sample
from sharpmax.experiments.clrs_text.tokenization import QATokenizer
from sharpmax.hf.evaluate.tasks import Task, TaskPrompt
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibrate import NothingToGain, calibrate
from sharpmax.policies import PAPER

PROMPTS = 32
"""Questions per size that a calibration reads."""


@dataclass(frozen=True)
class Subject:
    """A trained model that is going to be tested on an algorithm."""

    model: PreTrainedModel
    tokenizer: QATokenizer
    algorithm: str
    trained_to: int
    """The largest size that it was trained at."""
    calibration: tuple[Sample, ...] = ()
    """Samples of this algorithm that are in no test set, for methods that are fitted to a model."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Values that a condition adds here are saved with its results."""


Context = AbstractContextManager[Any]


@dataclass(frozen=True)
class Condition:
    """One curve of Figure 8."""

    attention: str
    """A name of `config.ATTENTIONS`: what its model was trained with."""
    testing: Callable[[Subject], Context]
    """Returns the context of a test; called once per algorithm."""
    label: str
    """The name in figures and tables."""
    calibrated: bool = False
    """Whether it needs calibration samples."""


def training_context(model: PreTrainedModel, attention: str) -> Context:
    """Return the context in which a model is trained with this attention."""
    policy = ATTENTIONS[attention]
    return nullcontext(model) if policy is None else sharpen(model, policy)


def leave_plain(subject: Subject) -> Context:
    """Leave attention as it is."""
    return nullcontext(subject.model)


def apply_paper_policy(subject: Subject) -> Context:
    """Apply the paper's polynomial to all heads."""
    return sharpen(subject.model, PAPER)


def calibrate_heads(subject: Subject) -> Context:
    """Sharpen the heads for which this makes right answers more probable.

    The heads are chosen at sizes trained at and sharpened only beyond them. If no head helps,
    attention stays as it is, and the notes say why.
    """
    sizes = sorted({sample.size for sample in subject.calibration})
    short = [size for size in sizes if size <= subject.trained_to]
    long = [size for size in sizes if size > subject.trained_to]
    if not short or not long:
        raise UserError(
            f"the calibration data have sizes {sizes or 'none'} of {subject.algorithm}: expected "
            f"one up to {subject.trained_to}, the largest trained at, and one above it"
        )
    try:
        calibration = calibrate(
            subject.model,
            subject.tokenizer.tokenizer,
            _calibration_task(subject),
            short=short,
            long=long,
            prompts=PROMPTS,
        )
    except NothingToGain as error:
        subject.notes["nothing"] = str(error)
        return nullcontext(subject.model)
    subject.notes.update(
        heads=[[head.layer, head.head] for head in calibration.heads],
        rate=calibration.heads[0].rate,
        from_tokens=calibration.from_tokens,
        by_rate={
            "0": calibration.method["log_probability_of_long"],
            **calibration.method["by_rate"],
        },
    )
    return sharpen(subject.model, calibration)


def _calibration_task(subject: Subject) -> Task:
    """Return the algorithm's questions as a task, tokenised as in the test."""
    by_size: dict[int, list[Sample]] = {}
    for sample in subject.calibration:
        by_size.setdefault(sample.size, []).append(sample)

    def make_prompt(
        tokenizer: Any, size: int, questions: int, generator: np.random.Generator
    ) -> TaskPrompt:
        samples = by_size[size]
        (example,) = subject.tokenizer.encode([samples[generator.integers(len(samples))]])
        return TaskPrompt(example.question[:-1], (example.question[-1:],), (example.answer,))

    return Task(subject.algorithm, "size", (), (), (), (), PROMPTS, 1, make_prompt)


CONDITIONS = {
    "softmax": Condition("softmax", leave_plain, "softmax"),
    "adaptive": Condition(
        "adaptive", apply_paper_policy, "adaptive temperature, trained and tested"
    ),
    "inference": Condition("softmax", apply_paper_policy, "adaptive temperature, tested only"),
    "calibrated": Condition(
        "softmax", calibrate_heads, "calibrated by head, tested only", calibrated=True
    ),
}
"""By name, in the order in which they are drawn."""
UNCALIBRATED = tuple(name for name, condition in CONDITIONS.items() if not condition.calibrated)
"""Conditions that need only a trained model."""
