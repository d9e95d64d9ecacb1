"""Find out whether sharpening helps a model on a task: all conditions answer the same questions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch.distributed as dist
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.bos import prepare_tokenizer
from sharpmax.hf.checkpoint import SECONDS_BETWEEN_SAVES, Checkpoint
from sharpmax.hf.evaluate import stats
from sharpmax.hf.evaluate.conditions import PLAIN, Condition, make_conditions
from sharpmax.hf.evaluate.resolve import AnyTask, resolve_task
from sharpmax.hf.evaluate.scoring import require_language_model, score_answers
from sharpmax.hf.evaluate.tasks import Task, TaskPrompt, hash_prompts, make_prompts
from sharpmax.hf.model_info import describe_model, weights_fingerprint
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.hf.patch.parallel import group_of
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.progress import Progress, ProgressCallback
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import PAPER, Policy
from sharpmax.results import Result, Stopwatch

if TYPE_CHECKING:
    from accelerate import PartialState
    from jaxtyping import Float, Int
    from torch.distributed import ProcessGroup


class Evaluation(Result):
    """The result of `evaluate`: scores per length, condition, prompt and question, and tests.

    `measurements["rows"]` has one row per length and condition, which `row` looks up.
    """

    kind: Literal["evaluate"] = "evaluate"
    """The kind of result."""

    @property
    def conditions(self) -> list[str]:
        """The names of the conditions, the plain model first."""
        return list(self.config["arms"])

    @property
    def arms(self) -> list[str]:
        """The names of the conditions. Deprecated: use `conditions`."""
        _warn_renamed("arms", "conditions")
        return self.conditions

    @property
    def lengths(self) -> list[int]:
        """The lengths of the prompts, in the unit of the task."""
        return list(self.config["lengths"])

    @property
    def right(self) -> Int[np.ndarray, "lengths conditions prompts questions"]:
        """1 where greedy decoding writes the right answer, else 0.

        A task with several right answers to a question has one column for each. -1 where a length
        has fewer prompts than others.
        """
        return self.arrays["right"]

    @property
    def log_probability(self) -> Float[np.ndarray, "lengths conditions prompts questions"]:
        """The log-probability of the right answer, in nats."""
        return self.arrays["log_probability"]

    def row(self, length: int, condition: str = PLAIN, *, arm: str | None = None) -> dict[str, Any]:
        """Return the accuracy, log-probability and comparison of a condition at a length.

        Args:
            length: One of `lengths`.
            condition: One of `conditions`.
            arm: Deprecated name of `condition`.

        Returns:
            `accuracy` and `log_probability`; for all but the plain model also `compared` and
            `log_probability_compared`, the differences to the plain model.

        Raises:
            KeyError: There is no such length or condition.
        """
        if arm is not None:
            _warn_renamed("arm", "condition")
            condition = arm
        for row in self.measurements["rows"]:
            if row["length"] == length and row["arm"] == condition:
                return row
        raise KeyError(
            f"no condition {condition!r} at length {length}: {self.conditions} at {self.lengths}"
        )


def _warn_renamed(old: str, new: str) -> None:
    warnings.warn(f"{old!r} is deprecated: use {new!r}", DeprecationWarning, stacklevel=3)


def evaluate(
    model: PreTrainedModel,
    tokenizer: Any,
    task: AnyTask = "lookup",
    policies: Mapping[str, Condition | Policy | Calibration | str | Path] | None = None,
    *,
    lengths: Sequence[int] | None = None,
    prompts: int | None = None,
    questions: int | None = None,
    seed: int = 0,
    name: str | None = None,
    notes: Sequence[str] = (),
    resume: str | Path | None = None,
    progress: ProgressCallback | None = None,
    processes: PartialState | None = None,
) -> Evaluation:
    """Compare a plain model with sharpened ones on questions whose answers are known.

    Use it to find out whether a policy or a calibration helps your model on your task, and over
    which lengths. All conditions answer the same questions, so that differences are tested in
    pairs: an exact sign-flip test over prompts, adjusted for the number of comparisons.

    Args:
        model: A causal language model of transformers. It is unchanged afterwards.
        tokenizer: Its tokenizer.
        task: `"lookup"` (the code of one name among many; lengths count names), `"passkey"` (a
            number hidden in filler; lengths count tokens), `"max"` (the largest of some numbers),
            a task of RULER such as `"niah_multikey_2"` (lengths count tokens), the path of a
            `.jsonl` file of your own questions or a list of them (see `read_questions`), or a
            function `(length, generator) -> (text, answer)`.
        policies: What to compare with the plain model, by name: policies, calibrations, paths of
            calibration files, or a `Condition` for some layers and heads. Default: the paper's
            policy.
        lengths: Lengths of the prompts. Default: those of the task.
        prompts: Number of prompts of each length, at least 6. Default: that of the task.
        questions: Number of questions per prompt. Default: that of the task.
        seed: Seed of the random prompts.
        name: The model's name in the result.
        notes: Notes to keep in the result.
        resume: A checkpoint file. An interrupted evaluation resumes if you repeat the call; call
            `forget` once the result is saved.
        progress: Called with the finished share of this process's work, from 0 to 1.
        processes: `accelerate.PartialState()`, if several processes call this function, each with
            a model of its own. They share the prompts out, and all return the same.

    Returns:
        Accuracy and log-probability of the right answers per length and condition, with intervals
        and tests.

    Raises:
        UserError: The model, task, lengths or policies do not fit together, or `resume` is the
            checkpoint of another job. Raised before the model reads anything.

    Examples:
        >>> evaluation = evaluate(model, tokenizer, "lookup", {"paper": sx.PAPER}, lengths=[16, 32])
        >>> evaluation.row(32, "paper")["accuracy"]["mean"]
    """
    model = unwrap_model(model)
    watch = Stopwatch()
    task = resolve_task(task)
    prompts = task.prompts if prompts is None else prompts
    questions = task.questions if questions is None else questions
    if prompts < stats.MIN_PROMPTS:
        raise UserError(
            f"prompts={prompts}: no outcome of a paired test is significant at the 5 % level with "
            f"fewer than {stats.MIN_PROMPTS} prompts; give at least {stats.MIN_PROMPTS}, or a few "
            "hundred to find differences of a few points"
        )
    require_language_model(model)
    require_support(model)
    tokenizer, bos_notes = prepare_tokenizer(model, tokenizer)
    lengths = task.lengths if lengths is None else lengths
    by_length = make_prompts(model, task, tokenizer, lengths, prompts, questions, seed)
    _require_prompts(task, by_length)
    conditions = make_conditions(model, {"paper": PAPER} if policies is None else policies)
    config = {
        **describe_model(model, name, (*notes, *bos_notes)),
        "task": task.name,
        "unit": task.unit,
        "lengths": list(by_length),
        "prompts": max(map(len, by_length.values())),
        "questions": questions,
        "seed": seed,
        "inputs_sha256": hash_prompts(by_length.values()),
        "arms": {name: condition.describe() for name, condition in conditions.items()},
    }
    checkpoint = Checkpoint(
        resume,
        "evaluate",
        config | {"weights_sha256": weights_fingerprint(model)},
        group=_find_group(model, processes),
        shared=processes is not None,
    )
    _score_conditions(model, tokenizer, by_length, conditions, checkpoint, progress, processes)
    return _make_result(config, checkpoint.arrays, by_length, watch)


def _require_prompts(task: Task, by_length: dict[int, list[TaskPrompt]]) -> None:
    """Refuse lengths of which the task has too few questions for a test."""
    few = {length: len(prompts) for length, prompts in by_length.items()}
    for length, number in few.items():
        if number < stats.MIN_PROMPTS:
            raise UserError(
                f"{task.name} has {number} questions of length {length:,}: no outcome of a paired "
                f"test is significant at the 5 % level with fewer than {stats.MIN_PROMPTS}; add "
                "questions, or leave that length out"
            )


def _find_group(model: PreTrainedModel, processes: PartialState | None) -> ProcessGroup | None:
    """Return the processes that do the job together: by sharing prompts, or the model's heads."""
    group = group_of(model)
    if processes is None:
        return group
    if group is not None:
        raise UserError(
            "the model's heads are split among the processes, so each must read all prompts: leave "
            "out `processes`"
        )
    running = dist.get_world_size() if dist.is_initialized() else 1
    if processes.num_processes != running:
        raise UserError(
            f"processes: {processes.num_processes} of {running} are joined; on a machine without a "
            "GPU give accelerate.PartialState(cpu=True)"
        )
    return dist.group.WORLD if running > 1 else None


def _score_conditions(
    model: PreTrainedModel,
    tokenizer: Any,
    by_length: dict[int, list[TaskPrompt]],
    conditions: dict[str, Condition],
    checkpoint: Checkpoint,
    progress: ProgressCallback | None,
    processes: PartialState | None,
) -> None:
    """Score all prompts under all conditions, except for what the checkpoint has already."""
    steps = [
        (row, number, prompt)
        for row, prompts in enumerate(by_length.values())
        for number, prompt in enumerate(prompts)
    ]
    first, *_ = by_length.values()
    shape = (len(by_length), len(conditions), max(map(len, by_length.values())))
    right = checkpoint.array("right", (*shape, first[0].parts), -1, np.int8)  # -1: not asked yet
    log_probability = checkpoint.array("log_probability", (*shape, len(first[0].questions)), np.nan)
    for part in checkpoint.parts:
        _take_finished(checkpoint.arrays, part)
    if processes is not None:
        todo = [step for step in steps if (right[step[0], :, step[1]] < 0).any()]
        steps = todo[processes.process_index :: processes.num_processes]
    shares = Progress(progress, [prompt.tokens for _, _, prompt in steps])
    with evaluation_mode(model):
        for row, number, prompt in steps:
            for column, condition in enumerate(conditions.values()):
                if right[row, column, number, 0] < 0:
                    with condition.apply(model):
                        scores = score_answers(model, tokenizer, prompt)
                    right[row, column, number] = scores.right
                    log_probability[row, column, number] = scores.log_probability
                shares.finish_part(len(conditions))
            shares.finish_step()
            # Any of several processes may be lost, and they have more to lose together.
            checkpoint.save(every=SECONDS_BETWEEN_SAVES if processes is None else 0.0)
    if processes is not None:
        for arrays in gather_object([checkpoint.arrays]):
            _take_finished(checkpoint.arrays, arrays)
    checkpoint.save()


def _take_finished(arrays: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> None:
    """Copy the scores that another process has."""
    finished = (others["right"] >= 0).any(-1)
    for name, values in arrays.items():
        values[finished] = others[name][finished]


def _make_result(
    config: dict[str, Any],
    arrays: dict[str, np.ndarray],
    by_length: dict[int, list[TaskPrompt]],
    watch: Stopwatch,
) -> Evaluation:
    right, log_probability = arrays["right"] == 1, arrays["log_probability"]
    rows = [
        _row(
            length,
            condition,
            right[index, :, : len(prompts)],
            log_probability[index, :, : len(prompts)],
            column,
        )
        for index, (length, prompts) in enumerate(by_length.items())
        for column, condition in enumerate(config["arms"])
    ]
    compared = [row for row in rows if row["arm"] != PLAIN]
    adjusted = stats.adjust_p_values([row["compared"]["p"] for row in compared])
    for row, p_value in zip(compared, adjusted, strict=True):
        row["compared"]["p_adjusted"] = p_value
    result = Evaluation(
        config=config,
        seeds=(config["seed"],),
        measurements={
            "tokens": [max(prompt.tokens for prompt in some) for some in by_length.values()],
            "rows": rows,
            "level": stats.LEVEL,
            "power": stats.POWER,
        },
        provenance=watch.provenance(),
    )
    return result.with_arrays(**arrays)


def _row(
    length: int, condition: str, right: np.ndarray, log_probability: np.ndarray, column: int
) -> dict[str, Any]:
    """Summarise a condition at a length and compare it with the plain one, column 0."""
    row: dict[str, Any] = {
        "length": length,
        "arm": condition,
        "accuracy": stats.accuracy(right[column]),
        "log_probability": float(log_probability[column].mean()),
    }
    if column:
        row["compared"] = stats.compare_answers(right[0], right[column])
        row["log_probability_compared"] = stats.mean_difference(
            log_probability[0], log_probability[column]
        )
    return row
