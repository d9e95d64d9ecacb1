"""The cells of the comparison: lookup, formats that were not tuned on, text and short tasks."""

from __future__ import annotations

import math
from typing import Any

from transformers import PreTrainedModel

from sharpmax.experiments.cells import Cell, read_essays, read_hellaswag
from sharpmax.experiments.tune_comparison.config import Config
from sharpmax.hf.evaluate.tasks import HELD_OUT_TASKS, TASKS, make_prompts
from sharpmax.hf.model_info import context_length
from sharpmax.hf.tune.guard import load_guard
from sharpmax.hf.tune.settings import FROM_TOKENS


def make_cells(config: Config, model: PreTrainedModel, tokenizer: Any) -> list[Cell]:
    """Return all cells, the most telling first.

    All inputs are made before the model reads anything, so that what is missing is reported first.

    Raises:
        UserError: A package is not installed, or a prompt exceeds the model's context.
    """

    def ask(task: str, group: str, length: int, prompts: int, questions: int) -> Cell:
        made = make_prompts(
            model, TASKS[task], tokenizer, [length], prompts, questions, config.seed
        )
        telling = length <= {"lookup": 128, "held-out": max(config.held_out_names)}.get(group, 0)
        return Cell(f"{task}-{length}", group, task, length, telling, tuple(made[length]))

    def look_up(task: str, group: str, names: int) -> Cell:
        questions = min(config.questions, names)
        return ask(task, group, names, math.ceil(config.answers / questions), questions)

    essays = read_essays(config.essays, config.essay_tokens, tokenizer)
    guard = load_guard(tokenizer, None, FROM_TOKENS, context_length(model))
    return [
        *(look_up("lookup", "lookup", names) for names in config.names),
        Cell("essays", "text", "essays", 0, True, essays),
        Cell("guard", "text", "guard", 0, True, guard.check),
        ask("passkey", "passkey", config.passkey_tokens, config.passkeys, 1),
        *(
            look_up(task, "held-out", names)
            for names in config.held_out_names
            for task in HELD_OUT_TASKS
        ),
        look_up("lookup", "short", config.short_names),
        read_hellaswag(config.items, config.seed, tokenizer),
    ]
