"""Find the few heads that are worth sharpening, instead of sharpening all of them alike.

One polynomial in every head does not help a language model (Section 5 of arXiv 2410.01104), since
most of its heads are not meant to be sharp. Two ways to choose, both from short inputs, which the
model still answers well:

- `answers`: heads whose sharpening makes the right answers more probable, by the derivative of the
  log-probability with respect to each head's temperature. Needs questions with known answers.
- `entropy`: heads that are sharp on short inputs and have dispersed on long ones, each brought back
  to its own entropy. Needs no answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.evaluate.scoring import answers, require_language_model
from sharpmax.hf.evaluate.tasks import Case, Task, UserTask, cases, task_of
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.patch.layers import evaluation_mode, require_support
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune import head_profiles
from sharpmax.hf.tune.calibration import Architecture, Calibration, Head

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

CHOICES = ("answers", "entropy")

ERRORS = 3.0
"""A head is chosen by answers if its benefit is this many standard errors above 0,"""
SHARE = 0.2
"""and at least this share of the largest."""

SHARP = 1.0
"""A head is sharp on short inputs up to this entropy, in nats,"""
RISE = 0.25
"""and has dispersed if on long ones it has so much more."""

RATES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.6)
"""That are tried for the heads chosen by answers,"""
ENOUGH = 0.9
"""and the smallest that has this share of the largest gain is taken: inputs may yet be longer."""
FACTORS = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""Inverse temperatures at which the entropy of long inputs is measured."""


class NothingToGain(UserError):  # noqa: N818 - an answer, not a mistake
    """No head of this model is worth sharpening for this task."""


@dataclass(frozen=True)
class _Found:
    """What was measured, by layer and head."""

    short: Float[np.ndarray, "layers heads"]
    long: Float[np.ndarray, "factors layers heads"]
    benefit: Float[np.ndarray, "layers heads"] | None
    error: Float[np.ndarray, "layers heads"] | None


def calibrate(
    model: PreTrainedModel,
    tokenizer: Any,
    task: str | Task | UserTask = "lookup",
    *,
    choose: str = "answers",
    short: Sequence[int] | None = None,
    long: Sequence[int] | None = None,
    prompts: int = 16,
    questions: int | None = None,
    seed: int = 1,
    name: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Calibration:
    """Which heads of the model to sharpen beyond the length of the short inputs, and how much.

    `short` and `long` are lengths of the task, of each of which `prompts` inputs are read. Use
    another `seed` than the one with which you evaluate: these inputs have been seen. The same call
    gives the same file.
    """
    kind = task_of(task)
    settings = _settings(kind, choose, short, long, prompts, questions, seed)
    require_language_model(model)
    require_support(model)
    made = {
        which: cases(model, kind, tokenizer, settings[which], prompts, settings["questions"], seed)
        for which in ("short", "long")
    }
    low, high = (_flat(made[which]) for which in ("short", "long"))
    start = max(case.tokens for case in low)
    if min(case.tokens for case in high) <= start:
        raise UserError(
            f"short={settings['short']} has inputs of up to {start:,} tokens and "
            f"long={settings['long']} of fewer: give longer long inputs"
        )
    bar = _Bar(progress, len(low), len(high) * (1 + len(RATES) * (choose == "answers")))
    with evaluation_mode(model):
        found = _measure(model, low, high, choose, bar)
        chosen = _chosen(found, choose)
        draft = _draft(model, name, found, chosen, settings, start)
        if choose == "entropy":
            rates = _back_to_profile(found, chosen, high, start)
            heads = [
                one.model_copy(update={"rate": _rounded(float(rates[one.layer, one.head]))})
                for one in draft.heads
            ]
            return draft.model_copy(update={"heads": tuple(heads)})
        return _best_rate(model, tokenizer, draft, high, bar)


def _settings(
    kind: Task,
    choose: str,
    short: Sequence[int] | None,
    long: Sequence[int] | None,
    prompts: int,
    questions: int | None,
    seed: int,
) -> dict[str, Any]:
    if choose not in CHOICES:
        raise UserError(f"choose={choose!r}: expected one of {', '.join(CHOICES)}")
    if prompts < 4:
        raise UserError(f"prompts={prompts}: give at least 4, to tell a benefit from chance")
    return {
        "task": kind.name,
        "choose": choose,
        "short": list(short or kind.short),
        "long": list(long or kind.long),
        "prompts": prompts,
        "questions": min(kind.questions, 4) if questions is None else questions,
        "seed": seed,
    }


def _flat(made: dict[int, list[Case]]) -> list[Case]:
    return [case for some in made.values() for case in some]


class _Bar:
    def __init__(self, progress: Callable[[float], None] | None, *steps: int) -> None:
        self.report = progress or (lambda share: None)
        self.total, self.done = sum(steps), 0

    def step(self) -> None:
        self.done += 1
        self.report(self.done / self.total)


def _measure(
    model: PreTrainedModel, low: list[Case], high: list[Case], choose: str, bar: _Bar
) -> _Found:
    short, long, slopes = [], [], []
    factors = FACTORS if choose == "entropy" else FACTORS[:1]
    for case in low:
        short.append(head_profiles.entropies(model, case, (1.0,))[0])
        if choose == "answers":
            slopes.append(head_profiles.benefits(model, case))
        bar.step()
    for case in high:
        long.append(head_profiles.entropies(model, case, factors))
        bar.step()
    if not slopes:
        return _Found(np.mean(short, 0), np.mean(long, 0), None, None)
    error = np.std(slopes, 0, ddof=1) / np.sqrt(len(slopes))
    return _Found(np.mean(short, 0), np.mean(long, 0), np.mean(slopes, 0), error)


def _chosen(found: _Found, choose: str) -> Bool[np.ndarray, "layers heads"]:
    """NaN, where a layer has fewer heads, is never chosen."""
    if found.benefit is not None and found.error is not None:
        clear = found.benefit > ERRORS * found.error
        chosen = clear & (found.benefit >= SHARE * np.nanmax(found.benefit))
        reason = "no head whose sharpening clearly helps the answers to short inputs"
    else:
        chosen = (found.short <= SHARP) & (found.long[0] - found.short >= RISE)
        reason = f"no head has at most {SHARP} nats on short inputs and {RISE} more on long ones"
    if not chosen.any():
        raise NothingToGain(
            f"{reason}: there is nothing to calibrate on this task (choose={choose})"
        )
    return chosen


def _draft(
    model: PreTrainedModel,
    name: str | None,
    found: _Found,
    chosen: Bool[np.ndarray, "layers heads"],
    settings: dict[str, Any],
    start: int,
) -> Calibration:
    """With a rate of 1 in every chosen head."""
    heads = []
    for layer, head in np.argwhere(chosen).tolist():
        known = (
            {}
            if found.benefit is None or found.error is None
            else {
                "benefit": _rounded(float(found.benefit[layer, head])),
                "benefit_error": _rounded(float(found.error[layer, head])),
            }
        )
        heads.append(
            Head(
                layer=layer,
                head=head,
                rate=1.0,
                short_entropy=_rounded(float(found.short[layer, head])),
                long_entropy=_rounded(float(found.long[0, layer, head])),
                **known,
            )
        )
    return Calibration(
        model=name or model.config._name_or_path or type(model).__name__,
        weights=weights_fingerprint(model),
        architecture=Architecture.of(model),
        method=settings,
        from_tokens=start,
        heads=tuple(heads),
    )


def _back_to_profile(
    found: _Found, chosen: Bool[np.ndarray, "layers heads"], high: list[Case], start: int
) -> Float[np.ndarray, "layers heads"]:
    """The rate at which a head's entropy on long inputs is what it is on short ones."""
    excess = np.mean([np.log(case.tokens / start) for case in high])
    rates = np.zeros(chosen.shape)
    for layer, head in np.argwhere(chosen).tolist():
        # Entropy falls as the factor rises; np.interp wants what it looks up in rising order.
        falling = found.long[::-1, layer, head]
        factor = np.interp(found.short[layer, head], falling, FACTORS[::-1])
        rates[layer, head] = (factor - 1) / excess
    return rates


def _best_rate(
    model: PreTrainedModel, tokenizer: Any, draft: Calibration, high: list[Case], bar: _Bar
) -> Calibration:
    """The rate, the same in all chosen heads, that makes the right answers to long inputs more
    probable: the smallest of those that serve nearly best.
    """

    def score(one: Case) -> float:
        return float(answers(model, tokenizer, one).log_probability.mean())

    plain = float(np.mean([score(case) for case in high]))
    tried: dict[float, float] = {}
    for rate in RATES:
        with sharpen(model, draft.scaled(rate)):
            tried[rate] = float(np.mean([score(case) for case in high]))
        for _ in high:
            bar.step()
    best = max(tried, key=lambda rate: tried[rate])
    if tried[best] <= plain:
        raise NothingToGain(
            f"sharpening {len(draft.heads)} heads, chosen on short inputs, makes the answers to "
            f"long ones less probable at every rate ({plain:.2f} nats before, at best "
            f"{tried[best]:.2f}): this task gains nothing by it"
        )
    method = draft.method | {
        "log_probability_of_long": _rounded(plain),
        "by_rate": {str(rate): _rounded(value) for rate, value in tried.items()},
    }
    enough = plain + ENOUGH * (tried[best] - plain)
    rate = next(rate for rate in RATES if tried[rate] >= enough)
    return draft.scaled(rate).model_copy(update={"method": method})


def _rounded(value: float) -> float:
    """Four digits: what is beyond differs from machine to machine."""
    return float(f"{value:.4g}")
