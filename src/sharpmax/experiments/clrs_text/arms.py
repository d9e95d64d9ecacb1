"""What is compared: a trained model, and what is done to its attention when it is tested.

One more arm is one more entry of `ARMS`: the name of the attention that its model was trained with,
and a function that gives the context in which that model is tested on an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text.data import Sample
from sharpmax.experiments.clrs_text.tokens import Tokens
from sharpmax.hf.evaluate.tasks import Task, TaskPrompt
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibrate import NothingToGain, calibrate
from sharpmax.policies import PAPER, Policy

ATTENTIONS: dict[str, Policy | None] = {"softmax": None, "adaptive": PAPER}
"""What a model may be trained with, in all heads; None leaves its attention as it is."""

PROMPTS = 32
"""Questions of each size that a calibration reads."""


@dataclass(frozen=True)
class Subject:
    """A trained model about to be tested on an algorithm."""

    model: PreTrainedModel
    tokens: Tokens
    algorithm: str
    trained_to: int
    """The largest size that it was trained at."""
    calibration: tuple[Sample, ...] = ()
    """Of this algorithm, and of no test set: for methods that are fitted to a model."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What an arm puts here is kept with its results."""


Context = AbstractContextManager[Any]


@dataclass(frozen=True)
class Arm:
    """One curve of Figure 8."""

    attention: str
    """What its model was trained with."""
    testing: Callable[[Subject], Context]
    """The context of the test; entered once for each algorithm."""
    label: str
    calibrated: bool = False
    """Whether it needs samples to be fitted to."""


def trained_with(model: PreTrainedModel, attention: str) -> Context:
    """The context in which a model is trained."""
    policy = ATTENTIONS[attention]
    return nullcontext(model) if policy is None else sharpen(model, policy)


def plain(subject: Subject) -> Context:
    return nullcontext(subject.model)


def papers(subject: Subject) -> Context:
    return sharpen(subject.model, PAPER)


def by_head(subject: Subject) -> Context:
    """The heads whose sharpening makes right answers more probable at the sizes trained at, beyond
    these sizes only. Where there are none, attention stays as it is, and the notes say why.
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
        found = calibrate(
            subject.model,
            subject.tokens.tokenizer,
            _task(subject),
            short=short,
            long=long,
            prompts=PROMPTS,
        )
    except NothingToGain as error:
        subject.notes["nothing"] = str(error)
        return nullcontext(subject.model)
    subject.notes.update(
        heads=[[one.layer, one.head] for one in found.heads],
        rate=found.heads[0].rate,
        from_tokens=found.from_tokens,
        by_rate={"0": found.method["log_probability_of_long"], **found.method["by_rate"]},
    )
    return sharpen(subject.model, found)


def _task(subject: Subject) -> Task:
    """The algorithm's questions, cut into tokens as they are in the test."""
    by_size: dict[int, list[Sample]] = {}
    for sample in subject.calibration:
        by_size.setdefault(sample.size, []).append(sample)

    def case(
        tokenizer: Any, size: int, questions: int, generator: np.random.Generator
    ) -> TaskPrompt:
        some = by_size[size]
        (one,) = subject.tokens.examples([some[generator.integers(len(some))]])
        return TaskPrompt(one.question[:-1], (one.question[-1:],), (one.answer,))

    return Task(subject.algorithm, "size", (), (), (), PROMPTS, 1, case)


ARMS = {
    "softmax": Arm("softmax", plain, "softmax"),
    "adaptive": Arm("adaptive", papers, "adaptive temperature, trained and tested"),
    "inference": Arm("softmax", papers, "adaptive temperature, tested only"),
    "calibrated": Arm("softmax", by_head, "calibrated by head, tested only", calibrated=True),
}
"""By name, in the order in which they are drawn."""
PAPERS = tuple(name for name, arm in ARMS.items() if not arm.calibrated)
"""Those that need nothing but a trained model."""
