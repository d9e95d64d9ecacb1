"""Questions whose answer is known, in texts of any length: does a model still answer them?

The answers are numbers, so that right and wrong need no judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax.hf.model_info import context_length
from sharpmax.hf.scan.prompts import Passkey, check_lengths, encode, maximum_question


@dataclass(frozen=True)
class Case:
    """A text and questions about it, each with its answer; all as tokens.

    `context + question + answer` is what the model reads.
    """

    context: tuple[int, ...]
    questions: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """The longest that is read."""
        rows = zip(self.questions, self.answers, strict=True)
        return len(self.context) + max(len(question) + len(answer) for question, answer in rows)


@dataclass(frozen=True)
class Task:
    """A kind of question: `case(tokenizer, length, questions, generator)` makes a text of that
    length with so many questions about it.
    """

    name: str
    unit: str
    """What the length counts."""
    lengths: tuple[int, ...]
    """Which are usual;"""
    short: tuple[int, ...]
    """which to calibrate on,"""
    long: tuple[int, ...]
    """and for."""
    prompts: int
    """How many texts of each length are usual,"""
    questions: int
    """and how many questions about each."""
    case: Callable[[Any, int, int, np.random.Generator], Case]


UserTask = Callable[[int, np.random.Generator], tuple[str, str]]
"""From a length and a source of random numbers to a text that ends where the answer, a number with
a space before it, would begin, and the answer."""


def task_of(task: str | Task | UserTask) -> Task:
    """The task of this name, or the user's own."""
    if isinstance(task, Task):
        return task
    if callable(task):
        return _own(task)
    if task not in TASKS:
        raise UserError(
            f"unknown task {task!r}: expected one of {', '.join(TASKS)}, or a function that makes "
            "a text and its answer"
        )
    return TASKS[task]


def cases(
    model: PreTrainedModel,
    task: Task,
    tokenizer: Any,
    lengths: Sequence[int],
    prompts: int,
    questions: int,
    seed: int,
) -> dict[int, list[Case]]:
    """All inputs, made before the first of them is read: what does not fit the model's context is
    refused before any work.
    """
    if not lengths and not task.lengths:
        raise UserError(f"{task.name} has no usual lengths: give those to make texts of")
    check_lengths(lengths)
    if prompts < 1 or questions < 1:
        raise UserError(f"prompts={prompts}, questions={questions}: give at least 1 of each")
    made = {
        length: [
            task.case(tokenizer, length, questions, np.random.default_rng([seed, length, number]))
            for number in range(prompts)
        ]
        for length in sorted(set(lengths))
    }
    context = context_length(model)
    tokens = {length: max(case.tokens for case in some) for length, some in made.items()}
    for length, count in tokens.items():
        if context is not None and count > context:
            fit = [other for other, its in tokens.items() if its <= context]
            raise UserError(
                f"{length:,} {task.unit} are {count:,} tokens with the answer, and the context of "
                f"this model is {context:,}: give lengths up to "
                + (f"{max(fit):,}, of those asked for" if fit else "fewer than that")
            )
    return made


def _own(function: UserTask) -> Task:
    name = f"function {getattr(function, '__name__', type(function).__name__)}"

    def case(tokenizer: Any, length: int, questions: int, generator: np.random.Generator) -> Case:
        _one(name, questions)
        return _case(tokenizer, [function(length, generator)])

    return Task(name, "length", (), (), (), 200, 1, case)


def _case(tokenizer: Any, rows: Sequence[tuple[str, str]]) -> Case:
    """The case of these (text with question, answer): what all texts begin with is the context.

    A text is cut into tokens together with its answer, as a model that writes it would see it: cut
    apart, many tokenizers begin the answer with another token.
    """
    asked = [encode(tokenizer, text) for text, _ in rows]
    whole = [encode(tokenizer, text + answer) for text, answer in rows]
    starts = [_common([ask, all_of_it]) for ask, all_of_it in zip(asked, whole, strict=True)]
    # A question keeps a token at least: it is where the answer begins to be predicted.
    shared = min(_common(whole) if len(whole) > 1 else min(starts), min(starts) - 1)
    return Case(
        tuple(whole[0][:shared]),
        tuple(tuple(row[shared:start]) for row, start in zip(whole, starts, strict=True)),
        tuple(tuple(row[start:]) for row, start in zip(whole, starts, strict=True)),
    )


def _common(rows: Sequence[list[int]]) -> int:
    """How many tokens all rows begin with."""
    for place, column in enumerate(zip(*rows, strict=False)):
        if len(set(column)) > 1:
            return place
    return min(map(len, rows))


def _one(name: str, questions: int) -> None:
    if questions != 1:
        raise UserError(f"task {name!r} asks one question a prompt, got questions={questions}")


def maximum(tokenizer: Any, length: int, questions: int, generator: np.random.Generator) -> Case:
    """The prompt of the paper's Figure 3."""
    _one("max", questions)
    numbers = generator.integers(0, 1000, size=length)
    return _case(tokenizer, [(maximum_question(numbers), f" {numbers.max()}")])


def passkey(tokenizer: Any, length: int, questions: int, generator: np.random.Generator) -> Case:
    """One five-digit number hidden somewhere in filler: `length` tokens with the question."""
    _one("passkey", questions)
    key, depth = int(generator.integers(10_000, 100_000)), float(generator.random())
    hidden = Passkey.create(tokenizer, key)
    prompt = hidden.tokens(length, depth)
    both = encode(tokenizer, f"{Passkey.QUESTION} {key}", special_tokens=False)
    start = _common([hidden.question, both])
    context = prompt[: length - len(hidden.question)]
    return Case(tuple(context), (tuple(both[:start]),), (tuple(both[start:]),))


NAMES = tuple(
    "".join(letters).capitalize()
    for letters in product("bdfgklmnprstvz", "aeiou", "bdfgklmnprstvz", "aeiou")
)
"""Of four letters, such as Bavo; 4,900 of them."""


def lookup(tokenizer: Any, length: int, questions: int, generator: np.random.Generator) -> Case:
    """The code of one name among `length` of them."""
    if length > len(NAMES):
        raise UserError(f"lookup has {len(NAMES):,} names, got length {length:,}")
    if questions > length:
        raise UserError(
            f"lookup asks for {questions} different names, and there are {length}: give at most "
            f"{length} questions"
        )
    names = [NAMES[place] for place in generator.choice(len(NAMES), length, replace=False)]
    codes = generator.integers(100, 1000, size=length)
    text = "".join(
        f"The code of {name} is {code}.\n" for name, code in zip(names, codes, strict=True)
    )
    asked = generator.choice(length, questions, replace=False)
    return _case(
        tokenizer,
        [
            (
                f"{text}\nQuestion: What is the code of {names[place]}?\n"
                f"Answer: The code of {names[place]} is",
                f" {codes[place]}",
            )
            for place in asked
        ],
    )


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("max", "numbers", (8, 16, 32, 64), (4, 8), (32,), 400, 1, maximum),
        Task("passkey", "tokens", (512, 1024, 2048), (128, 256), (1024,), 100, 1, passkey),
        Task("lookup", "names", (16, 32, 64), (4, 8), (32,), 80, 8, lookup),
    )
}
