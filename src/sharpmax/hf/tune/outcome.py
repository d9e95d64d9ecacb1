"""Make the calibration of a finished tuning: limit what it costs, and check what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sharpmax.hf.evaluate.scoring import score_answers
from sharpmax.hf.evaluate.tasks import Task, make_prompts
from sharpmax.hf.model_info import weights_fingerprint
from sharpmax.hf.patch.scope import PLAIN
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.tune.calibrate import NothingToGain, round_digits
from sharpmax.hf.tune.calibration import Calibration, architecture_of
from sharpmax.hf.tune.guard import text_nats
from sharpmax.hf.tune.learning import CHECK, Tuning
from sharpmax.hf.tune.settings import LAW
from sharpmax.results.calibration import Head, TaskGain, TextCost

SCALES = tuple(round(1 - 0.05 * number, 2) for number in range(20))
"""Factors of all rates that are tried, in this order, to keep the cost on ordinary text."""
MIN_RATE = 0.01
"""Smaller rates are dropped: at 16 times `from_tokens` they change a head by less than 3 %."""


def draft_calibration(run: Tuning, name: str | None) -> Calibration:
    """Return the calibration of the best rates."""
    heads = [
        Head(layer=layer, head=head, rate=round_digits(float(rate)))
        for layer, rates in enumerate(run.unflatten("best"))
        for head, rate in enumerate(rates.tolist())
        if abs(rate) >= MIN_RATE
    ]
    if not heads:
        raise NothingToGain(f"nothing to gain: no head has a rate of at least {MIN_RATE}")
    history = [[int(row[0]), *map(round_digits, row[1:3])] for row in run.history]
    return Calibration(
        model=name or run.model.config._name_or_path or type(run.model).__name__,
        weights=weights_fingerprint(run.model),
        architecture=architecture_of(run.model),
        method=run.settings.describe(run.guard) | {"history": history},
        from_tokens=run.settings.from_tokens,
        law=LAW,
        heads=tuple(heads),
    )


def limit_cost(run: Tuning, draft: Calibration) -> Calibration:
    """Scale all rates down until ordinary text costs no more than the limit.

    The guard in the loss weighs cost against gain; this keeps a promise about the cost. It is
    measured on the chunks for validation.
    """
    limit = run.settings.max_text_cost
    if limit is None:
        return draft
    plain = measure_text(run, None, run.guard.validation)
    for scale in SCALES:
        heads = [
            head.model_copy(update={"rate": round_digits(scale * head.rate)})
            for head in draft.heads
        ]
        scaled = draft.model_copy(update={"heads": tuple(heads)})
        if measure_text(run, scaled, run.guard.validation) <= (1 + limit) * plain:
            return scaled.model_copy(update={"method": draft.method | {"scale": scale}})
    raise NothingToGain(
        f"nothing to gain: even {SCALES[-1]} times the rates that help cost more than "
        f"{100 * limit:g} % on ordinary text; give a larger limit (--max-text-cost)"
    )


def check_gains(run: Tuning, draft: Calibration) -> Calibration:
    """Measure gains on fresh prompts of every task, and the cost on ordinary text."""
    if not run.settings.check_prompts:
        run.report(finished=1.0)
        return draft
    gains: list[dict[str, Any]] = run.checkpoint.values.setdefault("gains", [])
    lengths = dict.fromkeys(run.settings.held_out) | run.settings.tasks
    tasks = [*run.settings.tasks, *run.settings.held_out]
    for number, task in enumerate(tasks):
        if number >= len(gains):
            length = (lengths[task] or task.tuning or task.lengths)[-1]
            gains.append(_measure_gain(run, draft, task, length).model_dump())
            run.checkpoint.save()
        run.report(finished=(number + 1) / len(tasks))
    cost = TextCost(
        tokens=sum(len(chunk) - run.settings.from_tokens for chunk in run.guard.check),
        nats_before=measure_text(run, None, run.guard.check),
        nats_after=measure_text(run, draft, run.guard.check),
    )
    rows = tuple(TaskGain(**row) for row in gains)
    return draft.model_copy(update={"gains": rows, "text_cost": cost})


def _measure_gain(run: Tuning, draft: Calibration, task: Task, length: int) -> TaskGain:
    prompts = make_prompts(
        run.model,
        task.held_back[1] if task.held_back else task,
        run.tokenizer,
        [length],
        run.settings.check_prompts,
        min(task.questions, length),
        CHECK + 10_000 * run.settings.seed,
    )[length]
    before = [score_answers(run.model, run.tokenizer, prompt) for prompt in prompts]
    with sharpen(run.model, draft):
        after = [score_answers(run.model, run.tokenizer, prompt) for prompt in prompts]
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
        tuned_on=task in run.settings.tasks,
        questions=sum(prompt.parts for prompt in prompts),
        **values,
    )


def measure_text(run: Tuning, draft: Calibration | None, chunks: Sequence[Sequence[int]]) -> float:
    """Return the mean nats per token of chunks of text, plain or with a calibration."""
    first = run.settings.from_tokens
    with sharpen(run.model, PLAIN if draft is None else draft):
        nats = [text_nats(run.model, chunk, first) for chunk in chunks]
    return round_digits(float(np.mean(np.concatenate(nats))), 6)
