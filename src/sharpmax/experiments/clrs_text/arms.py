"""What is compared: a trained model, and what is done to its attention when it is tested.

One more arm is one more entry of `ARMS`: the name of the attention that its model was trained with,
and a function that gives the context in which that model is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from sharpmax.experiments.clrs_text.tokens import Example
from sharpmax.hf.sharpen import sharpen
from sharpmax.policies import PAPER, Policy

ATTENTIONS: dict[str, Policy | None] = {"softmax": None, "adaptive": PAPER}
"""What a model may be trained with, in all heads; None leaves its attention as it is."""


class Subject(NamedTuple):
    """A trained model about to be tested."""

    model: PreTrainedModel
    tokenizer: Any
    examples: Callable[[int], list[Example]]
    """So many of the samples that it was trained on, of all algorithms and sizes, for methods that
    are fitted to a model."""


Context = AbstractContextManager[Any]


@dataclass(frozen=True)
class Arm:
    """One curve of Figure 8."""

    attention: str
    """What its model was trained with."""
    testing: Callable[[Subject], Context]
    """The context of the test; entered once for all algorithms and sizes."""
    label: str


def trained_with(model: PreTrainedModel, attention: str) -> Context:
    """The context in which a model is trained."""
    policy = ATTENTIONS[attention]
    return nullcontext(model) if policy is None else sharpen(model, policy)


def plain(subject: Subject) -> Context:
    return nullcontext(subject.model)


def papers(subject: Subject) -> Context:
    return sharpen(subject.model, PAPER)


ARMS = {
    "softmax": Arm("softmax", plain, "softmax"),
    "adaptive": Arm("adaptive", papers, "adaptive temperature, trained and tested"),
    "inference": Arm("softmax", papers, "adaptive temperature, tested only"),
}
"""By name, in the order in which they are drawn."""
