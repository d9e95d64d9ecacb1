"""Take the steps of a tuning: gradients, validation, early stopping, and the checkpoint.

The loss of a step is

    mean of -log p(answer token) + guard_weight * KL(plain || tuned) per token of text
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.checkpoint import SECONDS_BETWEEN_SAVES, Checkpoint
from sharpmax.hf.evaluate.scoring import (
    answer_log_probability,
    answer_logits,
    read_context,
)
from sharpmax.hf.evaluate.tasks import Task, TaskPrompt
from sharpmax.hf.patch.layers import attention_layers
from sharpmax.hf.patch.parallel import sum_over_shares
from sharpmax.hf.tune.calibrate import NothingToGain
from sharpmax.hf.tune.checkpointing import checkpointed_layers
from sharpmax.hf.tune.guard import Guard, divergence, text_logits
from sharpmax.hf.tune.learnable import Learnable
from sharpmax.hf.tune.settings import Settings

if TYPE_CHECKING:
    from jaxtyping import Float

WARM_UP = 8
"""The learning rate rises linearly over so many steps, then falls linearly to 0."""
GUARD_EVERY = 3
"""Ordinary text takes part in every third step, with three times the weight: it costs as much as a
prompt, and its gradient is less noisy."""
GUARD_POSITIONS = 160
"""Positions of a chunk at which plain and tuned model are compared; all would take memory."""
VALIDATE_EVERY = 20
PATIENCE = 3
"""In the second half, tuning stops after this many validations without a new best one."""
GOOD_ENOUGH = 0.01
"""If right answers cost less than this many nats per token, there is nothing to gain."""
MIN_STANDARD_ERRORS = 2.0
"""The gain on validation prompts must be this many standard errors above 0."""

STREAM, ORDER, GUARD, VALIDATION, CHECK = 7001, 7002, 7003, 7004, 7005
"""First numbers of the seeds of random generators, so that no prompt is used twice."""


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


class _Validation(NamedTuple):
    """Mean negative log-probability per answer token of each prompt, and divergence on text."""

    nats: Float[np.ndarray, " prompts"]
    divergence: float

    def objective(self, guard_weight: float) -> float:
        return float(self.nats.mean()) + guard_weight * self.divergence


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
                self.report()
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
            generator = np.random.default_rng([GUARD, settings.seed, self.step])
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
        order = np.random.default_rng([ORDER, self.settings.seed, turn])
        tasks = list(self.settings.tasks)
        task = tasks[order.permutation(len(tasks))[index]]
        generator = np.random.default_rng([STREAM, self.settings.seed, self.step])
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
        for parameter, kept in zip(self.parameters, self.unflatten("kept"), strict=True):
            parameter *= kept

    # Validation.

    @torch.no_grad()
    def _validate(self) -> None:
        """Measure the objective, and keep the rates if it is the best so far."""
        nats = np.array(
            [sum(float(loss) for loss in self._answer_losses(prompt)) for prompt in self.validation]
        )
        generator = np.random.default_rng([VALIDATION, self.settings.seed])
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
        for parameter, best in zip(self.parameters, self.unflatten("best"), strict=True):
            parameter.copy_(best)
        return min(row[3] for row in self.history if self._eligible(row[0]))

    # Checkpoint and progress.

    def unflatten(self, key: str) -> list[Tensor]:
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
        parts = [self.unflatten(key) for key in ("rates", "mean", "square")]
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

    def report(self, finished: float = 0.0) -> None:
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
