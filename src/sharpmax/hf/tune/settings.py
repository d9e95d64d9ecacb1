"""The settings of a tuning, their defaults, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from sharpmax import __version__
from sharpmax._errors import UserError
from sharpmax.hf.evaluate.resolve import AnyTask, resolve_task
from sharpmax.hf.evaluate.tasks import HELD_OUT_TASKS, TUNING_TASKS, Task, UserTask
from sharpmax.hf.tune.guard import Guard
from sharpmax.results.calibration import Law

STEPS = 150
LEARNING_RATE = 0.03
GUARD_WEIGHT = 7.0
MAX_TEXT_COST = 0.004
"""Default limit of the cost on ordinary text, as a share of its nats per token."""
FROM_TOKENS = 128
LAW = Law(low=0.3, high=3.0)

Tasks: TypeAlias = (
    AnyTask | Sequence[AnyTask] | Mapping[str | Path | Task | UserTask, Sequence[int]]
)


class Settings(NamedTuple):
    """What a tuning depends on besides the model and the tokenizer."""

    tasks: dict[Task, tuple[int, ...]]
    held_out: tuple[Task, ...]
    questions: int
    steps: int
    learning_rate: float
    guard_weight: float
    from_tokens: int
    max_heads: int | None
    check_prompts: int
    save_memory: bool
    seed: int
    max_text_cost: float | None = MAX_TEXT_COST

    def describe(self, guard: Guard) -> dict[str, Any]:
        """Return what the calibration file holds of them."""
        return {
            "command": "tune",
            "tasks": {task.name: list(lengths) for task, lengths in self.tasks.items()},
            "held_out": [task.name for task in self.held_out],
            "questions": self.questions,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "guard": {
                "text": guard.name,
                "tokens": sum(map(len, guard.tuning)),
                "sha256": guard.sha256,
                "weight": self.guard_weight,
            },
            "max_text_cost": self.max_text_cost,
            "max_heads": self.max_heads,
            "check_prompts": self.check_prompts,
            "seed": self.seed,
            "version": __version__,
        }


def resolve_tasks(
    tasks: Tasks, held_out: Sequence[AnyTask] | None
) -> tuple[dict[Task, tuple[int, ...]], tuple[Task, ...]]:
    """Return the tasks with their lengths, and the tasks that are only checked."""
    if held_out is None:
        held_out = HELD_OUT_TASKS if tasks is TUNING_TASKS else ()
    resolved = {}
    for given, lengths in _split_lengths(tasks):
        task = resolve_task(given)
        resolved[task] = tuple(sorted(set(lengths))) or task.tuning
        if not resolved[task]:
            raise UserError(
                f"task {task.name!r} has no default lengths to tune on: give tasks as a mapping, "
                "such as {task: [16, 32]}"
            )
    if not resolved:
        raise UserError("no tasks: give at least one task to tune on")
    checked = tuple(map(resolve_task, held_out))
    names = [task.name for task in (*resolved, *checked)]
    repeated = {task for task in names if names.count(task) > 1}
    if repeated:
        raise UserError(f"tasks are given twice, or also held out: {', '.join(sorted(repeated))}")
    return resolved, checked


def _split_lengths(tasks: Tasks) -> list[tuple[AnyTask, Sequence[int]]]:
    """Return each task with the lengths that were given for it, which may be none."""
    if isinstance(tasks, Mapping):
        return list(tasks.items())
    # One task, or several? A list of questions is one.
    if isinstance(tasks, (str, Path, Task)) or callable(tasks):
        return [(tasks, ())]
    if tasks and all(isinstance(each, Mapping) for each in tasks):
        return [(cast("AnyTask", tasks), ())]
    return [(cast("AnyTask", task), ()) for task in tasks]


def check_questions(questions: int | None, save_memory: bool) -> int:
    """Return the number of questions per prompt."""
    if questions is not None and questions < 1:
        raise UserError(f"questions={questions}: give at least 1")
    return questions or (2 if save_memory else 8)


def check_numbers(settings: Settings) -> None:
    """Refuse numbers that are out of range."""
    for value, option, smallest in (
        (settings.steps, "steps", 1),
        (settings.from_tokens, "from_tokens", 1),
        (settings.max_heads, "max_heads", 1),
        (settings.check_prompts, "check_prompts", 0),
        (settings.seed, "seed", 0),
    ):
        if value is not None and value < smallest:
            raise UserError(f"{option}={value}: give at least {smallest}")
    for number, option in (
        (settings.learning_rate, "learning_rate"),
        (settings.guard_weight, "guard_weight"),
        (settings.max_text_cost or 0.0, "max_text_cost"),
    ):
        if not 0 <= number < math.inf:
            raise UserError(f"{option}={number}: give a number of at least 0")
