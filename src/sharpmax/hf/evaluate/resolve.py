"""Find a task: by its name, in a file, or as a user gives it in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sharpmax._errors import UserError
from sharpmax.hf.evaluate.own_data import read_questions
from sharpmax.hf.evaluate.ruler import RULER_TASKS
from sharpmax.hf.evaluate.tasks import TASKS, Task, UserTask, task_from_function

AnyTask: TypeAlias = str | Path | Task | UserTask | Sequence[Mapping[str, Any]]
"""A task, its name, a file of questions, a function, or a list of questions."""


def resolve_task(task: AnyTask) -> Task:
    """Return the task of this name, or the one that a file, a function or a list defines.

    Args:
        task: The name of a built-in task or of a RULER task, the path of a `.jsonl` file of
            questions, a list of questions, or a function `(length, generator) -> (text, answer)`.

    Raises:
        UserError: There is no such task, or the questions are not as `read_questions` expects.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, Path) or (isinstance(task, str) and task.endswith(".jsonl")):
        return read_questions(task)
    if callable(task):
        return task_from_function(task)
    if not isinstance(task, str):
        return read_questions(task)
    named = TASKS | RULER_TASKS
    if task not in named:
        raise UserError(
            f"unknown task {task!r}: expected one of {', '.join(named)}, the path of a .jsonl file "
            "of questions, or in Python a list of questions or a function that makes a text and "
            "its answer"
        )
    return named[task]
