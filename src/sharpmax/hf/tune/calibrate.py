"""Find the few heads that are worth sharpening, instead of sharpening all of them alike.

One polynomial in every head does not help a language model (Section 5 of arXiv 2410.01104): most of
its heads are not meant to be sharp. There are two methods to choose heads, both from short prompts,
which the model still answers well:

- `answers`: heads whose sharpening makes the right answers more probable, by the derivative of the
  log-probability with respect to each head's temperature. Needs questions with known answers.
- `entropy`: heads that are sharp on short prompts and disperse on long ones, each brought back to
  its own entropy. Needs no answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.bos import prepare_tokenizer
from sharpmax.hf.checkpoint import SECONDS_BETWEEN_SAVES, Checkpoint
from sharpmax.hf.evaluate.resolve import AnyTask, resolve_task
from sharpmax.hf.evaluate.scoring import require_language_model, score_reference
from sharpmax.hf.evaluate.tasks import (
    Task,
    TaskPrompt,
    hash_prompts,
    make_prompts,
)
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.hf.patch.parallel import group_of
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.progress import Progress, ProgressCallback
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibration import Calibration, architecture_of
from sharpmax.hf.tune.gradients import require_gradients
from sharpmax.hf.tune.head_profiles import measure_benefits, measure_entropies
from sharpmax.results.calibration import Head

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

METHODS = ("answers", "entropy")

MIN_STANDARD_ERRORS = 3.0
"""`answers` chooses a head if its benefit is at least this many standard errors above 0,"""
MIN_SHARE_OF_BEST = 0.2
"""and at least this share of the largest benefit of all heads."""

MAX_SHORT_ENTROPY = 1.0
"""`entropy` chooses a head if it has at most this entropy on short prompts, in nats,"""
MIN_ENTROPY_RISE = 0.25
"""and at least this much more on long ones."""

RATES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.6)
"""Rates that `answers` tries on long prompts, the same in all chosen heads."""
ENOUGH_GAIN = 0.9
"""It takes the smallest rate with this share of the largest gain: inputs may be longer still."""
FACTORS = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""Inverse temperatures at which `entropy` measures the long prompts."""


class NothingToGain(UserError):  # noqa: N818 - an answer, not a mistake
    """Sharpening does not help this model on this task."""


@dataclass(frozen=True)
class _Measurements:
    """Means over prompts, per layer and head.

    Attributes:
        short: Entropy on short prompts, in nats.
        long: Entropy on long prompts, for each of `FACTORS` that was measured.
        benefit: Derivative of log p(answer) by log inverse temperature; None without answers.
        benefit_error: Its standard error.
    """

    short: Float[np.ndarray, "layers heads"]
    long: Float[np.ndarray, "factors layers heads"]
    benefit: Float[np.ndarray, "layers heads"] | None
    benefit_error: Float[np.ndarray, "layers heads"] | None


def calibrate(
    model: PreTrainedModel,
    tokenizer: Any,
    task: AnyTask = "lookup",
    *,
    choose: str = "answers",
    short: Sequence[int] | None = None,
    long: Sequence[int] | None = None,
    prompts: int = 16,
    questions: int | None = None,
    seed: int = 1,
    name: str | None = None,
    resume: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Calibration:
    """Find which heads of a model to sharpen on long inputs, and how much.

    One policy in every head harms most language models. A calibration sharpens a few heads, each by
    its own rate, and only inputs that are longer than the short prompts here. The same call gives
    the same calibration.

    Args:
        model: A causal language model of transformers. It is unchanged afterwards.
        tokenizer: Its tokenizer.
        task: The task to calibrate on, as in `evaluate`.
        choose: `"answers"` chooses heads whose sharpening makes the right answers to short prompts
            more probable; `"entropy"` chooses heads that are sharp on short prompts and disperse
            on long ones, without using the answers.
        short: Lengths that the model answers well. Default: those of the task.
        long: Lengths to sharpen for. Default: those of the task.
        prompts: Number of prompts of each length, at least 4.
        questions: Number of questions per prompt. Default: that of the task, at most 4.
        seed: Seed of the random prompts. Use another seed to evaluate the calibration: these
            prompts have been seen.
        name: The model's name in the calibration.
        resume: A checkpoint file. An interrupted calibration resumes if you repeat the call; call
            `forget` once the calibration is saved.
        progress: Called with the finished share, from 0 to 1.

    Returns:
        The chosen heads with their rates, for `sharpen`, `evaluate` and `Calibration.save`.

    Raises:
        NothingToGain: No head qualifies, or sharpening those that do makes answers less probable.
        UserError: The model, task and lengths do not fit together, or `resume` is the checkpoint
            of another job. Raised before the model reads anything.

    Examples:
        >>> calibration = calibrate(model, tokenizer, "lookup")
        >>> with sharpen(model, calibration):
        ...     model.generate(...)
    """
    model = unwrap_model(model)
    task = resolve_task(task)
    settings = _settings(task, choose, short, long, prompts, questions, seed)
    require_language_model(model)
    require_support(model)
    if choose == "answers":
        require_gradients(model, "calibrate with choose='answers'")
    tokenizer, _ = prepare_tokenizer(model, tokenizer)
    short_prompts, long_prompts = (
        _flat_prompts(model, task, tokenizer, settings, lengths) for lengths in ("short", "long")
    )
    from_tokens = max(prompt.tokens for prompt in short_prompts)
    if min(prompt.tokens for prompt in long_prompts) <= from_tokens:
        raise UserError(
            f"long={settings['long']} has prompts of at most {from_tokens:,} tokens, the longest "
            f"of short={settings['short']}: give longer long lengths"
        )
    checkpoint = Checkpoint(
        resume,
        "calibrate",
        settings
        | {
            "inputs_sha256": hash_prompts([short_prompts, long_prompts]),
            "weights_sha256": weights_fingerprint(model),
        },
        group=group_of(model),
    )
    passes = len(short_prompts) + len(long_prompts)
    passes += (1 + len(RATES)) * len(long_prompts) if choose == "answers" else 0
    shares = Progress(progress, [1.0] * passes)
    try:
        with evaluation_mode(model):
            measured = _measure(model, short_prompts, long_prompts, choose, checkpoint, shares)
            chosen = _choose_heads(measured, choose)
            draft = _draft(model, name, measured, chosen, settings, from_tokens)
            if choose == "entropy":
                return _restore_entropies(draft, measured, long_prompts)
            return _choose_rate(model, tokenizer, draft, long_prompts, checkpoint, shares)
    except NothingToGain:
        checkpoint.remove()  # the job is finished, and there is no result to save
        raise


def _settings(
    task: Task,
    choose: str,
    short: Sequence[int] | None,
    long: Sequence[int] | None,
    prompts: int,
    questions: int | None,
    seed: int,
) -> dict[str, Any]:
    """Check the settings, fill in defaults and return what the calibration file holds of them."""
    if choose not in METHODS:
        raise UserError(f"choose={choose!r}: expected one of {', '.join(METHODS)}")
    if prompts < 4:
        raise UserError(f"prompts={prompts}: give at least 4, to tell a benefit from chance")
    return {
        "task": task.name,
        "choose": choose,
        "short": list(short or task.short),
        "long": list(long or task.long),
        "prompts": prompts,
        "questions": min(task.questions, 4) if questions is None else questions,
        "seed": seed,
    }


def _flat_prompts(
    model: PreTrainedModel, task: Task, tokenizer: Any, settings: dict[str, Any], lengths: str
) -> list[TaskPrompt]:
    """Return the prompts of all short or all long lengths."""
    by_length = make_prompts(
        model,
        task,
        tokenizer,
        settings[lengths],
        settings["prompts"],
        settings["questions"],
        settings["seed"],
    )
    return [prompt for prompts in by_length.values() for prompt in prompts]


def _measure(
    model: PreTrainedModel,
    short_prompts: list[TaskPrompt],
    long_prompts: list[TaskPrompt],
    choose: str,
    checkpoint: Checkpoint,
    shares: Progress,
) -> _Measurements:
    """Measure all heads on all prompts, except for what the checkpoint has already."""
    architecture = architecture_of(model)
    shape = (architecture.layers, max(architecture.heads))
    factors = FACTORS if choose == "entropy" else FACTORS[:1]
    short = checkpoint.array("short", (len(short_prompts), *shape), np.nan)
    benefit = checkpoint.array("benefit", short.shape, np.nan)
    long = checkpoint.array("long", (len(long_prompts), len(factors), *shape), np.nan)
    for index, prompt in enumerate(short_prompts):
        if np.isnan(short[index]).all():
            short[index] = measure_entropies(model, prompt, (1.0,))[0]
            if choose == "answers":
                benefit[index] = measure_benefits(model, prompt)
            checkpoint.save(every=SECONDS_BETWEEN_SAVES)
        shares.finish_step()
    for index, prompt in enumerate(long_prompts):
        if np.isnan(long[index]).all():
            long[index] = measure_entropies(model, prompt, factors)
            checkpoint.save(every=SECONDS_BETWEEN_SAVES)
        shares.finish_step()
    checkpoint.save()
    if choose == "entropy":
        return _Measurements(short.mean(0), long.mean(0), None, None)
    error = np.std(benefit, 0, ddof=1) / np.sqrt(len(benefit))
    return _Measurements(short.mean(0), long.mean(0), benefit.mean(0), error)


def _choose_heads(measured: _Measurements, choose: str) -> Bool[np.ndarray, "layers heads"]:
    """Return which heads qualify. NaN, where a layer has fewer heads, never does."""
    if measured.benefit is not None and measured.benefit_error is not None:
        clear = measured.benefit > MIN_STANDARD_ERRORS * measured.benefit_error
        chosen = clear & (measured.benefit >= MIN_SHARE_OF_BEST * np.nanmax(measured.benefit))
        reason = "there is no head whose sharpening clearly helps the answers to short prompts"
    else:
        chosen = (measured.short <= MAX_SHORT_ENTROPY) & (
            measured.long[0] - measured.short >= MIN_ENTROPY_RISE
        )
        reason = (
            f"no head has at most {MAX_SHORT_ENTROPY} nats on short prompts and "
            f"{MIN_ENTROPY_RISE} more on long ones"
        )
    if not chosen.any():
        raise NothingToGain(f"nothing to calibrate on this task (choose={choose!r}): {reason}")
    return chosen


def _draft(
    model: PreTrainedModel,
    name: str | None,
    measured: _Measurements,
    chosen: Bool[np.ndarray, "layers heads"],
    settings: dict[str, Any],
    from_tokens: int,
) -> Calibration:
    """Return a calibration with rate 1 in every chosen head."""
    heads = []
    for layer, head in np.argwhere(chosen).tolist():
        values = {
            "short_entropy": measured.short[layer, head],
            "long_entropy": measured.long[0, layer, head],
        }
        if measured.benefit is not None and measured.benefit_error is not None:
            values["benefit"] = measured.benefit[layer, head]
            values["benefit_error"] = measured.benefit_error[layer, head]
        rounded = {key: round_digits(value) for key, value in values.items()}
        heads.append(Head(layer=layer, head=head, rate=1.0, **rounded))
    return Calibration(
        model=name or model.config._name_or_path or type(model).__name__,
        weights=weights_fingerprint(model),
        architecture=architecture_of(model),
        method=settings,
        from_tokens=from_tokens,
        heads=tuple(heads),
    )


def _restore_entropies(
    draft: Calibration, measured: _Measurements, long_prompts: list[TaskPrompt]
) -> Calibration:
    """Set each rate so that the head has on long prompts the entropy it has on short ones."""
    excess = np.mean([np.log(prompt.tokens / draft.from_tokens) for prompt in long_prompts])
    heads = []
    for head in draft.heads:
        # Entropy falls as the factor rises, and np.interp needs ascending positions.
        falling = measured.long[::-1, head.layer, head.head]
        factor = np.interp(measured.short[head.layer, head.head], falling, FACTORS[::-1])
        heads.append(head.model_copy(update={"rate": round_digits((factor - 1) / excess)}))
    return draft.model_copy(update={"heads": tuple(heads)})


def _choose_rate(
    model: PreTrainedModel,
    tokenizer: Any,
    draft: Calibration,
    long_prompts: list[TaskPrompt],
    checkpoint: Checkpoint,
    shares: Progress,
) -> Calibration:
    """Choose one rate for all heads, by the log-probability of the right answers to long prompts.

    Takes the smallest rate whose gain is nearly the largest.
    """
    scores = checkpoint.array("scores", (1 + len(RATES), len(long_prompts)), np.nan)
    for row, rate in zip(scores, (None, *RATES), strict=True):
        with nullcontext() if rate is None else sharpen(model, draft.scaled(rate)):
            for index, prompt in enumerate(long_prompts):
                if np.isnan(row[index]):
                    answers = score_reference(model, tokenizer, prompt)
                    row[index] = answers.log_probability.mean()
                    checkpoint.save(every=SECONDS_BETWEEN_SAVES)
                shares.finish_step()
    checkpoint.save()
    plain, *means = scores.mean(1).tolist()
    by_rate = dict(zip(RATES, means, strict=True))
    best = max(means)
    if best <= plain:
        raise NothingToGain(
            f"sharpening the {len(draft.heads)} heads chosen on short prompts makes the right "
            f"answers to long ones less probable at every rate: {plain:.2f} nats without it, "
            f"{best:.2f} nats at the best rate"
        )
    method = draft.method | {
        "log_probability_of_long": round_digits(plain),
        "by_rate": {str(rate): round_digits(mean) for rate, mean in by_rate.items()},
    }
    enough = plain + ENOUGH_GAIN * (best - plain)
    rate = next(rate for rate, mean in by_rate.items() if mean >= enough)
    return draft.scaled(rate).model_copy(update={"method": method})


def round_digits(value: float, digits: int = 4) -> float:
    """Round to significant digits; further ones differ from machine to machine."""
    return float(f"{value:.{digits}g}")
