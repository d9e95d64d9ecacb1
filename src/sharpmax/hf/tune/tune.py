"""Learn by gradient descent how much each head should sharpen or soften as inputs grow.

The weights stay as they are. One number per head is learned, its rate:

    inverse temperature = clamp(1 + rate * log(n / from_tokens), low, high)   for n > from_tokens

from questions with known answers, in several formats, while ordinary text must be predicted as
before. `learning` takes the steps, `outcome` makes a calibration of what was learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.bos import prepare_tokenizer
from sharpmax.hf.checkpoint import Checkpoint
from sharpmax.hf.evaluate.resolve import AnyTask
from sharpmax.hf.evaluate.scoring import require_language_model
from sharpmax.hf.evaluate.tasks import (
    TUNING_TASKS,
    TaskPrompt,
    hash_prompts,
    make_prompts,
)
from sharpmax.hf.model_info import context_length, weights_fingerprint
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.hf.patch.parallel import group_of
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.tune.calibrate import NothingToGain
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.hf.tune.gradients import require_gradients
from sharpmax.hf.tune.guard import load_guard
from sharpmax.hf.tune.head_profiles import frozen_weights
from sharpmax.hf.tune.learnable import HeadRates, Learnable
from sharpmax.hf.tune.learning import VALIDATION, Tuning, TuningStep
from sharpmax.hf.tune.outcome import check_gains, draft_calibration, limit_cost
from sharpmax.hf.tune.settings import (
    FROM_TOKENS,
    GUARD_WEIGHT,
    LAW,
    LEARNING_RATE,
    MAX_TEXT_COST,
    STEPS,
    Settings,
    Tasks,
    check_numbers,
    check_questions,
    resolve_tasks,
)


def tune(
    model: PreTrainedModel,
    tokenizer: Any,
    tasks: Tasks = TUNING_TASKS,
    *,
    held_out: Sequence[AnyTask] | None = None,
    guard: str | Path | Sequence[str] | None = None,
    guard_weight: float = GUARD_WEIGHT,
    max_text_cost: float | None = MAX_TEXT_COST,
    from_tokens: int = FROM_TOKENS,
    max_heads: int | None = None,
    steps: int = STEPS,
    learning_rate: float = LEARNING_RATE,
    questions: int | None = None,
    check_prompts: int = 3,
    save_memory: bool = False,
    seed: int = 1,
    name: str | None = None,
    resume: str | Path | None = None,
    progress: Callable[[TuningStep], None] | None = None,
) -> Calibration:
    """Learn how much each head should sharpen or soften with length, without touching the weights.

    Long inputs lose facts because the heads that find them give them less and less weight. One
    number per head, learned in minutes, restores most of it. Several tasks are mixed so that the
    result serves others too, and ordinary text guards against harm. The same call on the same
    machine gives the same calibration.

    Args:
        model: A causal language model of transformers. It is unchanged afterwards.
        tokenizer: Its tokenizer.
        tasks: Tasks to tune on, as in `evaluate`: names, files of questions, or functions; or a
            mapping from these to the lengths to tune on. Of a file or list of questions, two of
            five are kept to decide when to stop and to measure the gain.
        held_out: Tasks to check only. Default: five formats of lookup if `tasks` is the default
            mix, else none.
        guard: Ordinary text that must be predicted as before: the path of a text file, a list of
            texts, or None for the texts of the package.
        guard_weight: The weight of the divergence on ordinary text in the loss.
        max_text_cost: All rates are scaled down at the end until ordinary text costs at most this
            share more nats per token, on chunks that were not tuned on; None for no limit.
        from_tokens: The number of tokens up to which nothing changes.
        max_heads: Keep only this many heads, those with the largest rates after half of the steps.
        steps: The number of prompts to learn from.
        learning_rate: The learning rate of Adam, which falls to 0.
        questions: Number of questions per prompt. Default: that of each task; with `save_memory`
            at most 2.
        check_prompts: Number of fresh prompts per task to measure the gain on; 0 to skip it.
        save_memory: Keep no activations between forward and backward pass. Takes longer.
        seed: Seed of the prompts and of the chunks of text.
        name: The model's name in the calibration.
        resume: A checkpoint file. An interrupted tuning resumes if you repeat the call; call
            `forget` once the calibration is saved.
        progress: Called after each step and each checked task.

    Returns:
        The rates, with what they gain on fresh prompts and cost on ordinary text, for `sharpen`,
        `evaluate` and `Calibration.save`.

    Raises:
        NothingToGain: The model already answers well, or no rates make its answers more probable.
        UserError: The model, tasks, lengths and guard text do not fit together, a loss is not
            finite, or `resume` is the checkpoint of another job.

    Examples:
        >>> calibration = shf.tune(model, tokenizer)
        >>> with shf.sharpen(model, calibration):
        ...     model.generate(...)
    """
    model = unwrap_model(model)
    settings = Settings(
        *resolve_tasks(tasks, held_out),
        check_questions(questions, save_memory),
        steps,
        float(learning_rate),
        float(guard_weight),
        from_tokens,
        max_heads,
        check_prompts,
        save_memory,
        seed,
        None if max_text_cost is None else float(max_text_cost),
    )
    check_numbers(settings)
    rates = HeadRates(model, from_tokens, LAW)
    run = prepare_tuning(model, tokenizer, settings, rates, guard, resume, progress)
    try:
        with evaluation_mode(model), frozen_weights(model):
            run.learn()
            draft = limit_cost(run, draft_calibration(run, name))
            return check_gains(run, draft)
    except NothingToGain:
        run.checkpoint.remove()  # the job is finished, and there is no result to save
        raise


def prepare_tuning(
    model: PreTrainedModel,
    tokenizer: Any,
    settings: Settings,
    learnable: Learnable,
    guard: str | Path | Sequence[str] | None = None,
    resume: str | Path | None = None,
    progress: Callable[[TuningStep], None] | None = None,
) -> Tuning:
    """Check that model, tasks and guard text fit together, and open the checkpoint.

    Raises:
        UserError: They do not, or the checkpoint is that of another job.
    """
    require_language_model(model)
    require_support(model)
    require_gradients(model, "tune")
    tokenizer, _ = prepare_tokenizer(model, tokenizer)
    texts = load_guard(tokenizer, guard, settings.from_tokens, context_length(model))
    validation = _validation_prompts(model, tokenizer, settings)
    checkpoint = Checkpoint(
        resume,
        "tune",
        settings.describe(texts)
        | {
            "from_tokens": settings.from_tokens,
            "save_memory": settings.save_memory,
            "inputs_sha256": hash_prompts([validation]),
            "weights_sha256": weights_fingerprint(model),
        }
        | learnable.describe(),
        group=group_of(model),
    )
    return Tuning(model, tokenizer, settings, learnable, texts, validation, checkpoint, progress)


def _validation_prompts(
    model: PreTrainedModel, tokenizer: Any, settings: Settings
) -> list[TaskPrompt]:
    """Return prompts of each task at its longest length.

    Being the longest, they also tell whether all prompts fit the model's context.
    """
    prompts = []
    for task, lengths in settings.tasks.items():
        count = min(task.questions, settings.questions)
        seed = VALIDATION + 10_000 * settings.seed
        kept = task.held_back[0] if task.held_back else task
        made = make_prompts(model, kept, tokenizer, lengths[-1:], task.validation, count, seed)
        prompts += made[lengths[-1]]
    longest = max(prompt.tokens for prompt in prompts)
    if longest <= settings.from_tokens:
        raise UserError(
            f"the longest prompt has {longest:,} tokens, and nothing changes up to "
            f"from_tokens={settings.from_tokens:,}: give longer lengths or a smaller from_tokens"
        )
    return prompts
