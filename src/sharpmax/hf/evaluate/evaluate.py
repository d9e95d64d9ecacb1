"""Does sharpening help this model on this task? Every way on the same questions, compared one by
one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.evaluate import stats
from sharpmax.hf.evaluate.conditions import PLAIN, Arm, arms_of
from sharpmax.hf.evaluate.marks import Keeper, Marks
from sharpmax.hf.evaluate.scoring import answers, require_language_model
from sharpmax.hf.evaluate.tasks import Case, Task, UserTask, cases, task_of
from sharpmax.hf.model_info import describe_model, weights_fingerprint
from sharpmax.hf.patch.layers import evaluation_mode, require_support
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import PAPER, Policy
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Evaluation(Result):
    """What `evaluate` found."""

    kind: Literal["evaluate"] = "evaluate"

    @property
    def arms(self) -> list[str]:
        """The model as it is, then the others."""
        return list(self.config["arms"])

    @property
    def lengths(self) -> list[int]:
        return list(self.config["lengths"])

    @property
    def right(self) -> Int[np.ndarray, "lengths arms prompts questions"]:
        """1 where the answer was right."""
        return self.arrays["right"]

    @property
    def log_probability(self) -> Float[np.ndarray, "lengths arms prompts questions"]:
        """Of the right answer."""
        return self.arrays["log_probability"]

    def row(self, length: int, arm: str) -> dict[str, Any]:
        """Everything about an arm at a length."""
        for row in self.measurements["rows"]:
            if row["length"] == length and row["arm"] == arm:
                return row
        raise KeyError(f"no arm {arm!r} at length {length}: {self.arms} at {self.lengths}")


def evaluate(
    model: PreTrainedModel,
    tokenizer: Any,
    task: str | Task | UserTask = "lookup",
    policies: Mapping[str, Arm | Policy | Calibration | str | Path] | None = None,
    *,
    lengths: Sequence[int] | None = None,
    prompts: int | None = None,
    questions: int | None = None,
    seed: int = 0,
    name: str | None = None,
    notes: Sequence[str] = (),
    resume: str | Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Accuracy, and log-probability of the right answer, of the model as it is and sharpened in
    each of these ways, over inputs of growing length.

    `task` is `"lookup"` (the code of one name among many; lengths count names), `"passkey"` (a
    number hidden in filler; tokens), `"max"` (the largest of some numbers), or a function
    `(length, generator) -> (text, answer)`. `policies` are by the names to print: a policy, a
    calibration or the path of its file, or an `Arm` for some layers and heads.
    `resume` names a file that keeps what is done, for the same call to go on from; `forget`
    removes it.
    """
    watch = Stopwatch()
    kind = task_of(task)
    prompts = kind.prompts if prompts is None else prompts
    questions = kind.questions if questions is None else questions
    if prompts < stats.FEWEST:
        raise UserError(
            f"prompts={prompts}: a paired test can tell nothing at the 5 % level from fewer than "
            f"{stats.FEWEST}; give at least that many, and some hundred for differences of a few "
            "points"
        )
    require_language_model(model)
    require_support(model)
    made = cases(
        model,
        kind,
        tokenizer,
        kind.lengths if lengths is None else lengths,
        prompts,
        questions,
        seed,
    )
    arms = arms_of(model, {"paper": PAPER} if policies is None else policies)
    config = {
        **describe_model(model, name, notes),
        "task": kind.name,
        "unit": kind.unit,
        "lengths": list(made),
        "prompts": prompts,
        "questions": questions,
        "seed": seed,
        "inputs_sha256": _digest(made),
        "arms": {name: arm.described() for name, arm in arms.items()},
    }
    marks = Marks.empty(len(made), len(arms), prompts, questions)
    keeper = Keeper.open(resume, config | {"weights_sha256": weights_fingerprint(model)}, marks)
    bar = _Bar(progress, made, len(arms))
    with evaluation_mode(model):
        for place, some in enumerate(made.values()):
            for number, case in enumerate(some):
                for column, arm in enumerate(arms.values()):
                    if marks.right[place, column, number, 0] < 0:
                        with arm.applied(model):
                            found = answers(model, tokenizer, case)
                        marks.right[place, column, number] = found.right
                        marks.log_probability[place, column, number] = found.log_probability
                    bar.add(case)
                keeper.keep()
    keeper.keep(now=True)
    return _result(config, made, arms, marks, watch)


def _digest(made: dict[int, list[Case]]) -> str:
    """Of all inputs."""
    content = [
        [(case.context, case.questions, case.answers) for case in some] for some in made.values()
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class _Bar:
    """How much of the work is done, by tokens read."""

    def __init__(
        self, progress: Callable[[float], None] | None, made: dict[int, list[Case]], arms: int
    ) -> None:
        self.report = progress or (lambda share: None)
        self.total = arms * sum(case.tokens for some in made.values() for case in some)
        self.done = 0

    def add(self, case: Case) -> None:
        self.done += case.tokens
        self.report(self.done / self.total)


def _result(
    config: dict[str, Any],
    made: dict[int, list[Case]],
    arms: dict[str, Arm],
    marks: Marks,
    watch: Stopwatch,
) -> Evaluation:
    rows = [
        _row(length, arm, marks, place, column)
        for place, length in enumerate(made)
        for column, arm in enumerate(arms)
    ]
    compared = [row for row in rows if row["arm"] != PLAIN]
    adjusted = stats.holm([row["compared"]["p"] for row in compared])
    for row, p in zip(compared, adjusted, strict=True):
        row["compared"]["p_adjusted"] = p
    result = Evaluation(
        config=config,
        seeds=(config["seed"],),
        measurements={
            "tokens": [max(case.tokens for case in some) for some in made.values()],
            "rows": rows,
            "level": stats.LEVEL,
            "power": stats.POWER,
        },
        provenance=watch.provenance(),
    )
    return result.with_arrays(right=marks.right, log_probability=marks.log_probability)


def _row(length: int, arm: str, marks: Marks, place: int, column: int) -> dict[str, Any]:
    right, log_probability = marks.right[place] == 1, marks.log_probability[place]
    row: dict[str, Any] = {
        "length": length,
        "arm": arm,
        "accuracy": stats.share(right[column]),
        "log_probability": float(log_probability[column].mean()),
    }
    if column:
        row["compared"] = stats.compare(right[0], right[column])
        row["log_probability_compared"] = stats.mean_difference(
            log_probability[0], log_probability[column]
        )
    return row
