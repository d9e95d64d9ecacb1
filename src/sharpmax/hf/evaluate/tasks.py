"""Tasks: texts of any length with questions whose answers are known.

The answers of these tasks are numbers, so that right and wrong need no judge. `own_data` reads a
user's questions with any answers, `ruler` makes those of RULER, and `resolve` finds a task by name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from sharpmax._errors import UserError
from sharpmax._ranges import check_lengths
from sharpmax.hf.evaluate.formats import (
    HELD_OUT_FORMATS,
    OTHER_FORMATS,
    TUNING_FORMATS,
    LookupFormat,
)
from sharpmax.hf.evaluate.marking import Marking
from sharpmax.hf.model_info import context_length
from sharpmax.hf.scan.prompts import COUNTED_UNITS, Passkey, encode, maximum_question

TokenRange = tuple[int, int]
"""The position of the first token, and that of the token after the last."""


@dataclass(frozen=True)
class TaskPrompt:
    """A text and questions about it with their answers, as tokens.

    For each question the model reads `context + question + answer`.

    Attributes:
        context: The tokens that all questions share.
        questions: The further tokens of each question, up to where its answer begins.
        answers: The tokens of each right answer.
        needles: Where the context has each answer, as a range of tokens; empty if the task does
            not say it, or the tokenizer does not say which characters its tokens hold.
        copies: Further places where the context has each answer, as ranges of tokens; empty if
            there are none.
        numbers: Where the context has a number, as ranges of tokens: the needles, their copies and
            every number that is not asked for. Empty if `needles` is.
        marking: How to mark what the model writes, for a prompt with one question; its answer is
            then a reference, for the log-probability. None if greedy decoding must write exactly
            the answer.
    """

    context: tuple[int, ...]
    questions: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[int, ...], ...]
    needles: tuple[TokenRange, ...] = ()
    copies: tuple[tuple[TokenRange, ...], ...] = ()
    numbers: tuple[TokenRange, ...] = ()
    marking: Marking | None = None

    @property
    def tokens(self) -> int:
        """The length of the longest sequence that the model reads."""
        pairs = zip(self.questions, self.answers, strict=True)
        return len(self.context) + max(len(question) + len(answer) for question, answer in pairs)

    @property
    def tokens_with_writing(self) -> int:
        """The length of the longest sequence that the model reads and writes."""
        if self.marking is None:
            return self.tokens
        return max(
            self.tokens, len(self.context) + len(self.questions[0]) + self.marking.max_tokens
        )

    @property
    def parts(self) -> int:
        """The number of answers that are right or wrong on their own."""
        return len(self.questions) if self.marking is None else self.marking.parts


@dataclass(frozen=True)
class Task:
    """A kind of prompt, with the numbers to use where the caller gives none.

    Attributes:
        name: The name in results and on the command line.
        unit: What a length counts, such as "tokens".
        lengths: Default lengths of an evaluation.
        short: Default short lengths of a calibration.
        long: Default long lengths of a calibration.
        tuning: Default lengths to tune on.
        prompts: Default number of prompts of each length.
        questions: Default number of questions per prompt.
        make_prompt: Makes a prompt from (tokenizer, length, questions, random generator).
        make_list: Makes all prompts of one length from (tokenizer, length, prompts, seed), for
            tasks whose prompts are not independent draws; None for `make_prompt` with a generator
            of its own for each.
        validation: Number of prompts with which `tune` decides when to stop.
        held_back: The tasks with which `tune` validates and checks, for a task with a fixed list
            of prompts; None for the task itself.
    """

    name: str
    unit: str
    lengths: tuple[int, ...]
    short: tuple[int, ...]
    long: tuple[int, ...]
    tuning: tuple[int, ...]
    prompts: int
    questions: int
    make_prompt: Callable[[Any, int, int, np.random.Generator], TaskPrompt]
    make_list: Callable[[Any, int, int, int], list[TaskPrompt]] | None = None
    validation: int = 1
    held_back: tuple[Task, Task] | None = None


UserTask = Callable[[int, np.random.Generator], tuple[str, str]]
"""A user's own task: from a length and a random generator to (text, answer).

The text ends where the answer would begin; the answer is a number with a space before it.
"""


MAX_QUESTIONS = 1_000_000
"""Most questions of one job: all prompts are in memory before the model reads one."""


def make_prompts(
    model: PreTrainedModel,
    task: Task,
    tokenizer: Any,
    lengths: Sequence[int],
    prompts: int,
    questions: int,
    seed: int,
) -> dict[int, list[TaskPrompt]]:
    """Return the prompts of each length, in ascending order of length.

    All are made before the model reads the first one, so that lengths that exceed the model's
    context raise before any work. A prompt depends on the seed, its length and its number only.
    """
    if not lengths and not task.lengths:
        raise UserError(f"task {task.name!r} has no default lengths: give lengths")
    check_lengths(lengths)
    if prompts < 1 or questions < 1:
        raise UserError(f"prompts={prompts}, questions={questions}: give at least 1 of each")
    if len(lengths) * prompts * questions > MAX_QUESTIONS:
        raise UserError(
            f"prompts={prompts:,}, questions={questions:,} at {len(lengths):,} lengths: give at "
            f"most {MAX_QUESTIONS:,} questions in all"
        )
    context = context_length(model)
    if context is not None and max(lengths) > context and task.unit in COUNTED_UNITS:
        raise UserError(
            f"{max(lengths):,} {task.unit} do not fit the context of this model, {context:,} "
            "tokens: use shorter lengths"
        )
    by_length = {
        length: _make_list(task, tokenizer, length, prompts, questions, seed)
        for length in sorted(set(lengths))
    }
    _require_context(model, task, by_length)
    return by_length


def _make_list(
    task: Task, tokenizer: Any, length: int, prompts: int, questions: int, seed: int
) -> list[TaskPrompt]:
    if task.make_list is not None:
        require_one_question(task.name, questions)
        return task.make_list(tokenizer, length, prompts, seed)
    return [
        task.make_prompt(
            tokenizer, length, questions, np.random.default_rng([seed, length, number])
        )
        for number in range(prompts)
    ]


def hash_prompts(groups: Iterable[Sequence[TaskPrompt]]) -> str:
    """Return the SHA-256 of all tokens, which tells the inputs of two jobs apart."""
    content = [[_content(prompt) for prompt in prompts] for prompts in groups]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _content(prompt: TaskPrompt) -> tuple[Any, ...]:
    marking = () if prompt.marking is None else (astuple(prompt.marking),)
    return (prompt.context, prompt.questions, prompt.answers, *marking)


def _require_context(
    model: PreTrainedModel, task: Task, by_length: dict[int, list[TaskPrompt]]
) -> None:
    """Raise if a prompt exceeds the model's context."""
    context = context_length(model)
    if context is None:
        return
    tokens = {
        length: max(prompt.tokens_with_writing for prompt in prompts)
        for length, prompts in by_length.items()
    }
    for length, count in tokens.items():
        if count > context:
            fitting = [other for other in tokens if tokens[other] <= context]
            advice = f"use lengths up to {max(fitting):,}" if fitting else "use shorter lengths"
            raise UserError(
                f"{length:,} {task.unit} make a prompt of {count:,} tokens with its answer, and "
                f"the context of this model is {context:,} tokens: {advice}"
            )


def task_from_function(function: UserTask) -> Task:
    """Return the task that a user's function defines."""
    name = f"function {getattr(function, '__name__', type(function).__name__)}"

    def make_prompt(
        tokenizer: Any, length: int, questions: int, generator: np.random.Generator
    ) -> TaskPrompt:
        require_one_question(name, questions)
        text, answer = function(length, generator)
        places = _find_number(text, answer)
        # Of several places only the user knows which ones give the answer.
        return tokenize(tokenizer, [(text, answer)], [places] if len(places) == 1 else [])

    return Task(name, "length", (), (), (), (), 200, 1, make_prompt)


def tokenize(
    tokenizer: Any,
    pairs: Sequence[tuple[str, str]],
    places: Sequence[Sequence[tuple[int, int]]] = (),
) -> TaskPrompt:
    """Return the prompt of these (text with question, answer); their common start is the context.

    A text is tokenised together with its answer, as a model that writes the answer would see it:
    tokenised apart, many tokenizers begin the answer with another token.

    Args:
        tokenizer: The model's tokenizer.
        pairs: Each question with the text before it, and its answer.
        places: Where each text has its answer, as ranges of characters: the needle, then copies.
    """
    texts = [encode(tokenizer, text) for text, _ in pairs]
    sequences = [encode(tokenizer, text + answer) for text, answer in pairs]
    starts = [_common_prefix([text, both]) for text, both in zip(texts, sequences, strict=True)]
    # The last token of each question predicts the first of the answer, so it is never shared.
    shared = min(_common_prefix(sequences) if len(pairs) > 1 else min(starts), min(starts) - 1)
    return TaskPrompt(
        tuple(sequences[0][:shared]),
        tuple(tuple(row[shared:start]) for row, start in zip(sequences, starts, strict=True)),
        tuple(tuple(row[start:]) for row, start in zip(sequences, starts, strict=True)),
        **_locate(tokenizer, pairs[0][0], shared, places),
    )


def _locate(
    tokenizer: Any, text: str, shared: int, places: Sequence[Sequence[tuple[int, int]]]
) -> dict[str, Any]:
    """Return `needles`, `copies` and `numbers` of a prompt, as far as they can be known."""
    offsets = _offsets(tokenizer, text)
    if not places or not offsets:
        return {}
    offsets = offsets[:shared]
    ranges = [[_token_range(offsets, place) for place in question] for question in places]
    # All or nothing: a needle that is not in the context cannot be found there.
    if not all(place for question in ranges for place in question):
        return {}
    numbers = (_token_range(offsets, match.span()) for match in re.finditer(r"\d+", text))
    return {
        "needles": tuple(question[0] for question in ranges),
        "copies": tuple(tuple(question[1:]) for question in ranges),
        "numbers": tuple(place for place in numbers if place),
    }


def _offsets(tokenizer: Any, text: str, *, special_tokens: bool = True) -> list[tuple[int, int]]:
    """Return which characters of a text each token holds; nothing if the tokenizer cannot say."""
    if not getattr(tokenizer, "is_fast", False):
        return []
    encoding = tokenizer(
        text, add_special_tokens=special_tokens, return_offsets_mapping=True, verbose=False
    )
    return list(encoding["offset_mapping"])


def _token_range(offsets: Sequence[tuple[int, int]], place: tuple[int, int]) -> TokenRange | None:
    """Return the range of tokens that hold these characters; None if no token holds the last."""
    first, after = place
    held = [index for index, (start, stop) in enumerate(offsets) if start < after and stop > first]
    if not held or offsets[held[-1]][1] < after:
        return None
    return held[0], held[-1] + 1


def _find_number(text: str, number: str) -> list[tuple[int, int]]:
    """Return where a text has this whole number, as ranges of characters."""
    pattern = rf"(?<!\d){re.escape(number.strip())}(?!\d)"
    return [match.span() for match in re.finditer(pattern, text)]


def find_text(text: str, part: str) -> list[tuple[int, int]]:
    """Return where a text has this part as whole words, as ranges of characters."""
    pattern = rf"(?<!\w){re.escape(part.strip())}(?!\w)"
    return [match.span() for match in re.finditer(pattern, text)]


def _common_prefix(sequences: Sequence[list[int]]) -> int:
    """Return how many tokens all sequences have in common at their start."""
    for position, tokens in enumerate(zip(*sequences, strict=False)):
        if len(set(tokens)) > 1:
            return position
    return min(map(len, sequences))


def require_one_question(name: str, questions: int) -> None:
    """Refuse another number of questions per prompt than one."""
    if questions != 1:
        raise UserError(f"task {name!r} has one question per prompt, got questions={questions}")


def make_max_prompt(
    tokenizer: Any, length: int, questions: int, generator: np.random.Generator
) -> TaskPrompt:
    """Ask for the largest of `length` numbers, in the words of the paper's Figure 3."""
    require_one_question("max", questions)
    numbers = generator.integers(0, 1000, size=length)
    text, answer = maximum_question(numbers), f" {numbers.max()}"
    return tokenize(tokenizer, [(text, answer)], [_find_number(text, answer)])


def make_passkey_prompt(
    tokenizer: Any, length: int, questions: int, generator: np.random.Generator
) -> TaskPrompt:
    """Ask for a five-digit number hidden in filler; text and question have `length` tokens."""
    require_one_question("passkey", questions)
    key, depth = int(generator.integers(10_000, 100_000)), float(generator.random())
    passkey = Passkey.create(tokenizer, key)
    context = passkey.tokens(length, depth)[: length - len(passkey.question)]
    question_and_answer = encode(tokenizer, f"{Passkey.QUESTION} {key}", special_tokens=False)
    start = _common_prefix([passkey.question, question_and_answer])
    needle, first = Passkey.NEEDLE.format(key=key), passkey.needle_start(length, depth)
    offsets = _offsets(tokenizer, needle, special_tokens=False)
    ranges = [_token_range(offsets, place) for place in _find_number(needle, str(key))]
    places = [(first + place[0], first + place[1]) for place in ranges if place]
    return TaskPrompt(
        tuple(context),
        (tuple(question_and_answer[:start]),),
        (tuple(question_and_answer[start:]),),
        tuple(places[:1]),
        (tuple(places[1:]),) if places else (),
        tuple(places),
    )


def _lookup_task(lookup: LookupFormat) -> Task:
    def make_prompt(
        tokenizer: Any, length: int, questions: int, generator: np.random.Generator
    ) -> TaskPrompt:
        text, asked = lookup.make(length, questions, generator)
        pairs = [(text + question.text, question.answer) for question in asked]
        return tokenize(tokenizer, pairs, [[question.needle] for question in asked])

    # Filler makes the lines of a text about three times as long.
    tuning = (8, 12, 16) if lookup.filler else (16, 24, 32, 40)
    return Task(lookup.name, "names", (16, 32, 64), (4, 8), (32,), tuning, 80, 8, make_prompt)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "max", "numbers", (8, 16, 32, 64), (4, 8), (32,), (16, 32, 48), 400, 1, make_max_prompt
        ),
        Task(
            "passkey",
            "tokens",
            (512, 1024, 2048),
            (128, 256),
            (1024,),
            (384, 512, 768),
            100,
            1,
            make_passkey_prompt,
        ),
        *map(_lookup_task, (*TUNING_FORMATS, *HELD_OUT_FORMATS, *OTHER_FORMATS)),
    )
}
"""The built-in tasks by name."""

TUNING_TASKS = (*(lookup.name for lookup in TUNING_FORMATS), "passkey")
"""The tasks that `tune` mixes by default."""

HELD_OUT_TASKS = tuple(lookup.name for lookup in HELD_OUT_FORMATS)
"""The tasks that `tune` only checks by default."""
