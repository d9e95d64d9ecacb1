"""Learn by gradient descent how much each head should sharpen or soften as inputs grow.

The weights stay as they are. One number per head is learned, its rate:

    inverse temperature = clamp(1 + rate * log(n / from_tokens), low, high)   for n > from_tokens

from questions with known answers, in several formats, while ordinary text must be predicted as
before:

    loss = mean of -log p(answer token) + guard_weight * KL(plain || tuned) per token of text
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax import __version__
from sharpmax._errors import UserError
from sharpmax.hf.checkpoint import SECONDS_BETWEEN_SAVES, Checkpoint
from sharpmax.hf.evaluate.scoring import (
    answer_log_probability,
    answer_logits,
    read_context,
    require_language_model,
    score_answers,
)
from sharpmax.hf.evaluate.tasks import (
    HELD_OUT_TASKS,
    TUNING_TASKS,
    Task,
    TaskPrompt,
    UserTask,
    hash_prompts,
    make_prompts,
    resolve_task,
)
from sharpmax.hf.model_info import context_length, weights_fingerprint
from sharpmax.hf.patch.layers import attention_layers, evaluation_mode
from sharpmax.hf.patch.parallel import group_of, sum_over_shares
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.patch.scope import PLAIN
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibrate import NothingToGain, round_digits
from sharpmax.hf.tune.calibration import Calibration, architecture_of
from sharpmax.hf.tune.checkpointing import checkpointed_layers
from sharpmax.hf.tune.gradients import require_gradients
from sharpmax.hf.tune.guard import Guard, divergence, load_guard, text_logits, text_nats
from sharpmax.hf.tune.head_profiles import frozen_weights
from sharpmax.hf.tune.learnable import HeadRates, Learnable
from sharpmax.results.calibration import Head, Law, TaskGain, TextCost

if TYPE_CHECKING:
    from jaxtyping import Float

STEPS = 150
LEARNING_RATE = 0.03
"""Falls linearly to 0, after a linear rise over the first `WARM_UP` steps."""
WARM_UP = 8
GUARD_WEIGHT = 7.0
MAX_TEXT_COST = 0.004
"""Default limit of the cost on ordinary text, as a share of its nats per token."""
FROM_TOKENS = 128
LAW = Law(low=0.3, high=3.0)

GUARD_EVERY = 3
"""Ordinary text takes part in every third step, with three times the weight: it costs as much as a
prompt, and its gradient is less noisy."""
GUARD_POSITIONS = 160
"""Positions of a chunk at which plain and tuned model are compared; all would take memory."""
VALIDATE_EVERY = 20
PATIENCE = 3
"""In the second half, tuning stops after this many validations without a new best one."""
SCALES = tuple(round(1 - 0.05 * number, 2) for number in range(20))
"""Factors of all rates that are tried, in this order, to keep the cost on ordinary text."""
MIN_RATE = 0.01
"""Smaller rates are dropped: at 16 times `from_tokens` they change a head by less than 3 %."""
GOOD_ENOUGH = 0.01
"""If right answers cost less than this many nats per token, there is nothing to gain."""
MIN_STANDARD_ERRORS = 2.0
"""The gain on validation prompts must be this many standard errors above 0."""

# First numbers of the seeds of random generators, so that no prompt is used twice.
_STREAM, _ORDER, _GUARD, _VALIDATION, _CHECK = 7001, 7002, 7003, 7004, 7005

Tasks = Sequence[str | Task | UserTask] | Mapping[str | Task | UserTask, Sequence[int]]


class TuningStep(NamedTuple):
    """Tell how far `tune` is, and what it has gained.

    Attributes:
        share: The finished share of the work, from 0 to 1.
        step: The number of finished steps.
        steps: The number of steps, unless tuning stops early.
        nats_before: The mean negative log-probability of an answer's token on validation prompts,
            plain.
        nats_now: The same at the last validation.
        divergence: KL(plain || tuned) per token of ordinary text at the last validation, in nats.
    """

    share: float
    step: int
    steps: int
    nats_before: float
    nats_now: float
    divergence: float


class NonFiniteLossError(UserError):
    """A loss is infinite or not a number."""


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


class _Validation(NamedTuple):
    """Mean negative log-probability per answer token of each prompt, and divergence on text."""

    nats: Float[np.ndarray, " prompts"]
    divergence: float

    def objective(self, guard_weight: float) -> float:
        return float(self.nats.mean()) + guard_weight * self.divergence


def tune(
    model: PreTrainedModel,
    tokenizer: Any,
    tasks: Tasks = TUNING_TASKS,
    *,
    held_out: Sequence[str | Task | UserTask] | None = None,
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
        tasks: Tasks to tune on: names, `Task`s, or functions `(length, generator) -> (text,
            answer)`; or a mapping from these to the lengths to tune on.
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
        _check_questions(questions, save_memory),
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
    _check_numbers(settings)
    rates = HeadRates(model, from_tokens, LAW)
    run = prepare_tuning(model, tokenizer, settings, rates, guard, resume, progress)
    try:
        with evaluation_mode(model), frozen_weights(model):
            run.learn()
            return run.check(run.limit_cost(run.draft(name)))
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


def resolve_tasks(
    tasks: Tasks, held_out: Sequence[str | Task | UserTask] | None
) -> tuple[dict[Task, tuple[int, ...]], tuple[Task, ...]]:
    """Return the tasks with their lengths, and the tasks that are only checked."""
    if held_out is None:
        held_out = HELD_OUT_TASKS if tasks is TUNING_TASKS else ()
    if isinstance(tasks, (str, Task)) or callable(tasks):
        tasks = (tasks,)
    lengths_given = tasks if isinstance(tasks, Mapping) else dict.fromkeys(tasks, ())
    resolved = {}
    for given, lengths in lengths_given.items():
        task = resolve_task(given)
        resolved[task] = tuple(sorted(set(lengths))) or task.tuning
        if not resolved[task]:
            raise UserError(
                f"task {task.name!r} has no default lengths to tune on: give tasks as a mapping, "
                "such as {task: [16, 32]}"
            )
    if not resolved:
        raise UserError("no tasks: give at least one task to tune on")
    names = [task.name for task in resolved] + [resolve_task(task).name for task in held_out]
    repeated = {task for task in names if names.count(task) > 1}
    if repeated:
        raise UserError(f"tasks are given twice, or also held out: {', '.join(sorted(repeated))}")
    return resolved, tuple(map(resolve_task, held_out))


def _check_questions(questions: int | None, save_memory: bool) -> int:
    if questions is not None and questions < 1:
        raise UserError(f"questions={questions}: give at least 1")
    return questions or (2 if save_memory else 8)


def _check_numbers(settings: Settings) -> None:
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


def _validation_prompts(
    model: PreTrainedModel, tokenizer: Any, settings: Settings
) -> list[TaskPrompt]:
    """Return one prompt per task at its longest length.

    Being the longest, they also tell whether all prompts fit the model's context.
    """
    prompts = []
    for task, lengths in settings.tasks.items():
        count = min(task.questions, settings.questions)
        seed = _VALIDATION + 10_000 * settings.seed
        prompts += make_prompts(model, task, tokenizer, lengths[-1:], 1, count, seed)[lengths[-1]]
    longest = max(prompt.tokens for prompt in prompts)
    if longest <= settings.from_tokens:
        raise UserError(
            f"the longest prompt has {longest:,} tokens, and nothing changes up to "
            f"from_tokens={settings.from_tokens:,}: give longer lengths or a smaller from_tokens"
        )
    return prompts


class Tuning:
    """One run of `tune`: what is learned, its optimiser, and what the checkpoint has of both."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        settings: Settings,
        learnable: Learnable,
        guard: Guard,
        validation: list[TaskPrompt],
        checkpoint: Checkpoint,
        progress: Callable[[TuningStep], None] | None,
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.guard, self.validation, self.checkpoint = guard, validation, checkpoint
        self.progress, self.learnable = progress, learnable
        self.parameters = learnable.parameters
        # A slow second moment: prompts differ much from step to step.
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=settings.learning_rate, betas=(0.9, 0.98)
        )
        total = sum(parameter.numel() for parameter in self.parameters)
        self.saved = {
            key: checkpoint.array(key, (total,), fill)
            for key, fill in (("rates", 0), ("mean", 0), ("square", 0), ("best", 0), ("kept", 1))
        }
        self.step = int(checkpoint.values.get("step", 0))
        self.history: list[list[float]] = checkpoint.values.setdefault("history", [])
        self.validation_nats = checkpoint.array("validation_nats", (2, len(validation)), np.nan)
        self._restore()

    def learn(self) -> None:
        """Take all steps, with validation and early stopping, and keep the best rates."""
        with self.learnable.applied():
            if not self.history:
                self._validate()
            while self.step < self.settings.steps and not self._stopped():
                self._take_step()
                if self.step % VALIDATE_EVERY == 0 or self.step == self.settings.steps:
                    self._validate()
                self._save(every=SECONDS_BETWEEN_SAVES)
                self._report()
        self._save()
        before, after = self.validation_nats
        gain = before - after
        error = gain.std(ddof=1) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
        if not gain.mean() > MIN_STANDARD_ERRORS * error:
            raise NothingToGain(
                "nothing to gain: the best rates take the right answers to validation prompts from "
                f"{-before.mean():.3f} to {-after.mean():.3f} nats per token, which is not more "
                "than chance"
            )

    # One step.

    def _take_step(self) -> None:
        settings = self.settings
        share = min(1.0, (self.step + 1) / WARM_UP) * (1 - self.step / settings.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * share
        self.optimiser.zero_grad()
        task, prompt = self._draw_prompt()
        for loss in self._answer_losses(prompt):
            self._backward(loss, f"task {task.name!r}")
        if settings.guard_weight and self.step % GUARD_EVERY == 0:
            generator = np.random.default_rng([_GUARD, settings.seed, self.step])
            chunk = self.guard.tuning[generator.integers(len(self.guard.tuning))]
            loss = self._divergence(chunk, generator)
            self._backward(GUARD_EVERY * settings.guard_weight * loss, "ordinary text")
        gradients = [part.grad for part in self.parameters if part.grad is not None]
        sum_over_shares(gradients, attention_layers(self.model))
        self.optimiser.step()
        self.step += 1
        if settings.max_heads is not None and self.step == (settings.steps + 1) // 2:
            self._keep_largest(settings.max_heads)
        self._mask()

    def _draw_prompt(self) -> tuple[Task, TaskPrompt]:
        """Return the prompt of this step, which depends on the seed and the step only.

        Each task has its turn, in an order that changes from turn to turn.
        """
        turn, index = divmod(self.step, len(self.settings.tasks))
        order = np.random.default_rng([_ORDER, self.settings.seed, turn])
        tasks = list(self.settings.tasks)
        task = tasks[order.permutation(len(tasks))[index]]
        generator = np.random.default_rng([_STREAM, self.settings.seed, self.step])
        length = int(generator.choice(self.settings.tasks[task]))
        count = min(task.questions, self.settings.questions, length)
        return task, task.make_prompt(self.tokenizer, length, count, generator)

    def _answer_losses(self, prompt: TaskPrompt) -> Iterator[Float[Tensor, ""]]:
        """Yield losses whose sum is the mean negative log-probability per answer token.

        With `save_memory` there is one per question, since layers that are computed again cannot
        share a cache.
        """
        tokens = sum(map(len, prompt.answers))
        if not self.settings.save_memory:
            yield _answer_nats(self.model, prompt, read_context(self.model, prompt)) / tokens
            return
        for question, answer in zip(prompt.questions, prompt.answers, strict=True):
            whole = TaskPrompt((), ((*prompt.context, *question),), (answer,))
            with checkpointed_layers(self.model):
                yield _answer_nats(self.model, whole, None) / tokens

    def _divergence(
        self, chunk: Sequence[int], generator: np.random.Generator
    ) -> Float[Tensor, ""]:
        """Return KL(plain || tuned) per token at random positions of a chunk."""
        candidates = np.arange(self.learnable.changed_from, len(chunk) - 1)
        count = min(GUARD_POSITIONS, len(candidates))
        positions = torch.from_numpy(np.sort(generator.choice(candidates, count, replace=False)))
        with torch.no_grad(), self.learnable.plain():
            plain = text_logits(self.model, chunk, positions)
        with ExitStack() as stack:
            if self.settings.save_memory and torch.is_grad_enabled():
                stack.enter_context(checkpointed_layers(self.model))
            return divergence(plain, text_logits(self.model, chunk, positions))

    def _backward(self, loss: Float[Tensor, ""], what: str) -> None:
        if not math.isfinite(float(loss.detach())):
            raise NonFiniteLossError(
                f"step {self.step + 1}: the loss on {what} is {float(loss.detach())}; try "
                "--dtype float32, or a smaller learning rate"
            )
        if loss.requires_grad:  # not if all rows see at most `from_tokens` tokens
            loss.backward()

    def _keep_largest(self, count: int) -> None:
        """Drop all heads but those with the largest rates."""
        sizes = np.abs(_flatten(self.parameters))
        self.saved["kept"][:] = 0
        self.saved["kept"][np.argsort(-sizes, kind="stable")[:count]] = 1

    @torch.no_grad()
    def _mask(self) -> None:
        for parameter, kept in zip(self.parameters, self._unflatten("kept"), strict=True):
            parameter *= kept

    # Validation.

    @torch.no_grad()
    def _validate(self) -> None:
        """Measure the objective, and keep the rates if it is the best so far."""
        nats = np.array(
            [sum(float(loss) for loss in self._answer_losses(prompt)) for prompt in self.validation]
        )
        generator = np.random.default_rng([_VALIDATION, self.settings.seed])
        costs = [float(self._divergence(chunk, generator)) for chunk in self.guard.validation[:3]]
        result = _Validation(nats, float(np.mean(costs)))
        if not np.isfinite(result.objective(self.settings.guard_weight)):
            raise NonFiniteLossError(
                f"step {self.step}: the loss on validation prompts is not finite; try "
                "--dtype float32, or a smaller learning rate"
            )
        if not self.history:
            self.validation_nats[0] = nats
            if nats.mean() < GOOD_ENOUGH:
                raise NothingToGain(
                    "nothing to gain: the model already gives the right answers to the longest "
                    f"prompts {-nats.mean():.3f} nats per token; give longer lengths"
                )
        objective = result.objective(self.settings.guard_weight)
        best = min((row[3] for row in self.history if self._eligible(row[0])), default=math.inf)
        self.history.append([self.step, float(nats.mean()), result.divergence, objective])
        if objective < best and self._eligible(self.step):
            self.saved["best"][:] = _flatten(self.parameters)
            self.validation_nats[1] = nats

    def _eligible(self, step: float) -> bool:
        """Return whether the rates of a step may be the result: not before heads were dropped."""
        return self.settings.max_heads is None or step >= (self.settings.steps + 1) // 2

    def _stopped(self) -> bool:
        """Return whether to stop early: nothing gained after half of the steps, or no longer.

        While the learning rate is high, validations go up and down, so that none of the first half
        counts as the beginning of a decline.
        """
        half = self.settings.steps / 2
        if self.step < half:
            return False
        later = [row[3] for row in self.history if row[0] >= half]
        if min(row[3] for row in self.history) == self.history[0][3]:
            return len(later) > 0
        return len(later) > PATIENCE and min(later[-PATIENCE:]) > min(later[:-PATIENCE])

    # The result.

    @torch.no_grad()
    def use_best(self) -> float:
        """Give the parameters their best values, and return the objective of these."""
        for parameter, best in zip(self.parameters, self._unflatten("best"), strict=True):
            parameter.copy_(best)
        return min(row[3] for row in self.history if self._eligible(row[0]))

    def draft(self, name: str | None) -> Calibration:
        """Return the calibration of the best rates."""
        heads = [
            Head(layer=layer, head=head, rate=round_digits(float(rate)))
            for layer, rates in enumerate(self._unflatten("best"))
            for head, rate in enumerate(rates.tolist())
            if abs(rate) >= MIN_RATE
        ]
        if not heads:
            raise NothingToGain(f"nothing to gain: no head has a rate of at least {MIN_RATE}")
        history = [[int(row[0]), *map(round_digits, row[1:3])] for row in self.history]
        return Calibration(
            model=name or self.model.config._name_or_path or type(self.model).__name__,
            weights=weights_fingerprint(self.model),
            architecture=architecture_of(self.model),
            method=self.settings.describe(self.guard) | {"history": history},
            from_tokens=self.settings.from_tokens,
            law=LAW,
            heads=tuple(heads),
        )

    def limit_cost(self, draft: Calibration) -> Calibration:
        """Scale all rates down until ordinary text costs no more than the limit.

        The guard in the loss weighs cost against gain; this keeps a promise about the cost. It is
        measured on the chunks for validation.
        """
        limit = self.settings.max_text_cost
        if limit is None:
            return draft
        plain = self._text_nats(None, self.guard.validation)
        for scale in SCALES:
            heads = [
                head.model_copy(update={"rate": round_digits(scale * head.rate)})
                for head in draft.heads
            ]
            scaled = draft.model_copy(update={"heads": tuple(heads)})
            if self._text_nats(scaled, self.guard.validation) <= (1 + limit) * plain:
                return scaled.model_copy(update={"method": draft.method | {"scale": scale}})
        raise NothingToGain(
            f"nothing to gain: even {SCALES[-1]} times the rates that help cost more than "
            f"{100 * limit:g} % on ordinary text; give a larger limit (--max-text-cost)"
        )

    def check(self, draft: Calibration) -> Calibration:
        """Measure gains on fresh prompts of every task, and the cost on ordinary text."""
        if not self.settings.check_prompts:
            self._report(finished=1.0)
            return draft
        gains: list[dict[str, Any]] = self.checkpoint.values.setdefault("gains", [])
        lengths = dict.fromkeys(self.settings.held_out) | self.settings.tasks
        tasks = [*self.settings.tasks, *self.settings.held_out]
        for number, task in enumerate(tasks):
            if number >= len(gains):
                length = (lengths[task] or task.tuning or task.lengths)[-1]
                gains.append(self._gain(draft, task, length).model_dump())
                self.checkpoint.save()
            self._report(finished=(number + 1) / len(tasks))
        cost = TextCost(
            tokens=sum(len(chunk) - self.settings.from_tokens for chunk in self.guard.check),
            nats_before=self._text_nats(None, self.guard.check),
            nats_after=self._text_nats(draft, self.guard.check),
        )
        rows = tuple(TaskGain(**row) for row in gains)
        return draft.model_copy(update={"gains": rows, "text_cost": cost})

    def _gain(self, draft: Calibration, task: Task, length: int) -> TaskGain:
        prompts = make_prompts(
            self.model,
            task,
            self.tokenizer,
            [length],
            self.settings.check_prompts,
            min(task.questions, length),
            _CHECK + 10_000 * self.settings.seed,
        )[length]
        before = [score_answers(self.model, self.tokenizer, prompt) for prompt in prompts]
        with sharpen(self.model, draft):
            after = [score_answers(self.model, self.tokenizer, prompt) for prompt in prompts]
        values = {}
        for when, scores in (("before", before), ("after", after)):
            right = np.concatenate([score.right for score in scores])
            nats = np.concatenate([score.log_probability for score in scores])
            values[f"right_{when}"] = round_digits(float(right.mean()))
            values[f"nats_{when}"] = round_digits(float(nats.mean()))
        return TaskGain(
            task=task.name,
            unit=task.unit,
            length=length,
            tokens=max(prompt.tokens for prompt in prompts),
            tuned_on=task in self.settings.tasks,
            questions=sum(len(prompt.questions) for prompt in prompts),
            **values,
        )

    def _text_nats(self, draft: Calibration | None, chunks: Sequence[Sequence[int]]) -> float:
        first = self.settings.from_tokens
        with sharpen(self.model, PLAIN if draft is None else draft):
            nats = [text_nats(self.model, chunk, first) for chunk in chunks]
        return round_digits(float(np.mean(np.concatenate(nats))), 6)

    # Checkpoint and progress.

    def _unflatten(self, key: str) -> list[Tensor]:
        """Return a saved array, cut into tensors like the parameters."""
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = np.split(self.saved[key], np.cumsum(sizes)[:-1])
        return [
            torch.tensor(part, dtype=torch.float32, device=parameter.device).view_as(parameter)
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]

    def _restore(self) -> None:
        """Put the parameters and the state of the optimiser of a checkpoint in place."""
        if not self.step:
            return
        parts = [self._unflatten(key) for key in ("rates", "mean", "square")]
        for parameter, saved, mean, square in zip(self.parameters, *parts, strict=True):
            with torch.no_grad():
                parameter.copy_(saved)
            self.optimiser.state[parameter] = {
                "step": torch.tensor(float(self.step)),
                "exp_avg": mean,
                "exp_avg_sq": square,
            }

    def _save(self, every: float = 0.0) -> None:
        states = [self.optimiser.state.get(parameter, {}) for parameter in self.parameters]
        if self.step and all(states):
            self.saved["rates"][:] = _flatten(self.parameters)
            self.saved["mean"][:] = _flatten([state["exp_avg"] for state in states])
            self.saved["square"][:] = _flatten([state["exp_avg_sq"] for state in states])
        self.checkpoint.values["step"] = self.step
        self.checkpoint.save(every=every)

    def _report(self, finished: float = 0.0) -> None:
        """Report the state; `finished` is the share of the final check."""
        if self.progress is None:
            return
        learning = 0.85 if self.settings.check_prompts else 1.0
        done = self.step / self.settings.steps if not finished else 1.0
        share = 1.0 if finished == 1 else learning * done + (1 - learning) * finished
        _, now, cost, _ = self.history[-1]
        self.progress(
            TuningStep(share, self.step, self.settings.steps, self.history[0][1], now, cost)
        )


def _flatten(tensors: Sequence[Tensor]) -> Float[np.ndarray, " numbers"]:
    return np.concatenate([tensor.detach().double().cpu().numpy().ravel() for tensor in tensors])


def _answer_nats(model: PreTrainedModel, prompt: TaskPrompt, cache: Any) -> Float[Tensor, ""]:
    """Return the sum of the negative log-probabilities of all answers."""
    logits = answer_logits(model, prompt, cache)
    scores = [
        answer_log_probability(rows.float().log_softmax(-1), answer)
        for rows, answer in zip(logits, prompt.answers, strict=True)
    ]
    return -torch.stack(scores).sum()
