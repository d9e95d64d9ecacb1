"""Choose the length to export for by asking questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.bos import prepare_tokenizer
from sharpmax.hf.evaluate.conditions import Condition
from sharpmax.hf.evaluate.resolve import AnyTask, resolve_task
from sharpmax.hf.evaluate.scoring import score_reference
from sharpmax.hf.evaluate.tasks import make_prompts
from sharpmax.hf.export.factors import Sharpening, fixed_rules
from sharpmax.hf.patch.context import patched_attention
from sharpmax.hf.patch.layers import evaluation_mode
from sharpmax.hf.patch.parity import require_support


def choose_length(
    model: PreTrainedModel,
    tokenizer: Any,
    condition: Condition,
    task: AnyTask = "lookup",
    *,
    lengths: Sequence[int] | None = None,
    prompts: int = 6,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> tuple[int, dict[int, float]]:
    """Return the number of tokens to export for, and the log-probability of answers for each tried.

    An export does at every length what a calibration does at one. The lengths of the task's own
    prompts are tried, each on all prompts.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        condition: The calibration or policy, and its layers and heads.
        task: The task to ask.
        lengths: Lengths of its prompts. Default: those of the task.
        prompts: Number of prompts per length.
        seed: Seed of the prompts.
        progress: Called with the finished share.

    Raises:
        UserError: No length changes anything.
    """
    require_support(model)
    tokenizer, _ = prepare_tokenizer(model, tokenizer)
    task = resolve_task(task)
    assert condition.policy is not None
    sharpening = Sharpening.create(model, condition.policy, condition.layers, condition.heads)
    lengths = lengths or task.lengths
    questions = min(task.questions, *lengths)
    made = make_prompts(model, task, tokenizer, lengths, prompts, questions, seed)
    candidates = {max(prompt.tokens for prompt in row): row for row in made.values()}
    gains: dict[int, float] = {}
    everything = [prompt for row in candidates.values() for prompt in row]
    with evaluation_mode(model):
        for number, tokens in enumerate(sorted(candidates)):
            rules = fixed_rules(sharpening.layers, sharpening.at_length(tokens))
            if rules:
                with patched_attention(model, sharpening.layers, rules):
                    scores = [score_reference(model, tokenizer, prompt) for prompt in everything]
                answers = np.concatenate([score.log_probability for score in scores])
                gains[tokens] = float(answers.mean())
            if progress is not None:
                progress((number + 1) / len(candidates))
    if not gains:
        raise UserError(
            f"{sharpening.name} changes nothing at the lengths of these prompts (at most "
            f"{max(candidates):,} tokens): give longer --lengths"
        )
    return max(gains, key=lambda tokens: gains[tokens]), gains
