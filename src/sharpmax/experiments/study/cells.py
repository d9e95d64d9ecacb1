"""The cells of the study: lookup, short tasks, ordinary text and RULER."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from sharpmax.experiments.cells import Cell, read_essays, read_hellaswag
from sharpmax.experiments.study.config import Sizes
from sharpmax.hf.evaluate.resolve import resolve_task
from sharpmax.hf.evaluate.tasks import make_prompts
from sharpmax.hf.model_info import context_length
from sharpmax.hf.tune.guard import load_guard
from sharpmax.hf.tune.settings import FROM_TOKENS


def make_cells(sizes: Sizes, seed: int, model: PreTrainedModel, tokenizer: Any) -> list[Cell]:
    """Return all cells, the quickest first: RULER takes most of the time.

    All inputs are made before the model reads anything, so that what is missing is reported first.

    Raises:
        UserError: A package is not installed, or a prompt exceeds the model's context.
    """

    def ask(task: str, group: str, length: int, questions: int) -> Cell:
        prompts = make_prompts(
            model, resolve_task(task), tokenizer, [length], sizes.prompts, questions, seed
        )
        return Cell(f"{task}-{length}", group, task, length, True, tuple(prompts[length]))

    def look_up(group: str, names: int) -> Cell:
        return ask("lookup", group, names, min(sizes.questions, names))

    essays = read_essays(sizes.essays, sizes.essay_tokens, tokenizer)
    guard = load_guard(tokenizer, None, FROM_TOKENS, context_length(model))
    return [
        *(look_up("lookup", names) for names in sizes.names),
        Cell("guard", "text", "guard", 0, True, guard.check),
        Cell("essays", "text", "essays", 0, True, essays),
        look_up("short", sizes.short_names),
        read_hellaswag(sizes.items, seed, tokenizer),
        *(ask(task, "ruler", length, 1) for length in sizes.ruler_tokens for task in sizes.ruler),
    ]
