"""Questions of your own: a prompt and its accepted answers per line of a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._errors import UserError
from sharpmax._ranges import MAX_LENGTH
from sharpmax.hf.evaluate.marking import Marking
from sharpmax.hf.evaluate.tasks import (
    MAX_QUESTIONS,
    Task,
    TaskPrompt,
    find_text,
    require_one_question,
    tokenize,
)

FIELDS = ("prompt", "answer", "match", "length", "max_tokens", "id")
"""The fields of a question. `id` is for the user's own use."""
MATCHES = ("exact", "contains")
MAX_TOKENS = 64
"""Default number of tokens that a model may write."""
PERIOD = 5
"""Of each 5 questions of a length, `tune` learns from three. The fourth is for validation, the
fifth for the final check."""
VALIDATION_QUESTIONS = 8


@dataclass(frozen=True)
class _Question:
    """A question as the user gives it, checked."""

    text: str
    marking: Marking
    length: int | None

    @property
    def answer(self) -> str:
        """The reference answer, with the space between it and the text."""
        answer = self.marking.accepted[0]
        separated = self.text[-1:].isspace() or answer[:1].isspace()
        return answer if separated else f" {answer}"

    def prompt(self, tokenizer: Any) -> TaskPrompt:
        """Return the question as tokens, with the place of its answer if there is only one."""
        places = find_text(self.text, self.marking.accepted[0])
        prompt = tokenize(
            tokenizer, [(self.text, self.answer)], [places] if len(places) == 1 else []
        )
        return replace(prompt, marking=self.marking)


def read_questions(source: str | Path | Sequence[Mapping[str, Any]]) -> Task:
    """Return the task of a user's own questions, for `evaluate`, `tune` and `diagnose`.

    The model writes its answer, which is then compared with the accepted ones, so that answers can
    be any strings. The questions are asked in the order of the file. A question has the fields

    - `prompt`: the text, up to where the answer begins; it is given to the model as it is;
    - `answer`: the accepted answer, or a list of them. The log-probability, and the loss of
      `tune`, are those of the first;
    - `match` (optional): `exact`, the default, if the first line that the model writes must be an
      accepted answer, or `contains` if an accepted answer must be somewhere in what it writes;
    - `length` (optional): a whole number by which results are grouped, such as the tokens of the
      prompt. Without it all questions are one group;
    - `max_tokens` (optional): how many tokens the model may write, 64 by default;
    - `id` (optional): not used.

    Args:
        source: The path of a file with one JSON object per line, or a list of dictionaries.

    Returns:
        The task.

    Raises:
        UserError: The file cannot be read, or a question is not as expected; it names the file and
            the line.

    Examples:
        >>> task = read_questions([{"prompt": "Paris is the capital of", "answer": "France"}])
    """
    if isinstance(source, (str, Path)):
        name, questions = Path(source).name, list(_read_file(Path(source)))
    else:
        rows = enumerate(source, 1)
        name, questions = "questions", [_check(row, f"question {at}") for at, row in rows]
    if not questions:
        raise UserError(f"{name} has no questions: give at least one")
    if len(questions) > MAX_QUESTIONS:
        raise UserError(
            f"{name} has {len(questions):,} questions: give at most {MAX_QUESTIONS:,} at a time"
        )
    by_length, unit = _group(name, questions)
    task = _make_task(name, unit, by_length)
    tuning, validation, check = (
        _make_task(name, unit, {length: part(group) for length, group in by_length.items()})
        for part in (_to_tune, _to_validate, _to_check)
    )
    return replace(
        task,
        make_prompt=tuning.make_prompt,
        held_back=(validation, check),
        validation=VALIDATION_QUESTIONS,
    )


def _to_tune(group: list[_Question]) -> list[_Question]:
    return [question for at, question in enumerate(group) if at % PERIOD < PERIOD - 2]


def _to_validate(group: list[_Question]) -> list[_Question]:
    return group[PERIOD - 2 :: PERIOD]


def _to_check(group: list[_Question]) -> list[_Question]:
    return group[PERIOD - 1 :: PERIOD]


def _make_task(name: str, unit: str, by_length: dict[int, list[_Question]]) -> Task:
    lengths = tuple(sorted(by_length))

    def choose(length: int) -> list[_Question]:
        if length not in by_length:
            raise UserError(
                f"{name} has no questions of length {length:,}: it has those of "
                + ", ".join(f"{one:,}" for one in lengths)
            )
        if not by_length[length]:
            raise UserError(
                f"{name} has fewer than {PERIOD} questions of length {length:,}: tune learns from "
                f"three of {PERIOD}, and keeps the others to see what it gains"
            )
        return by_length[length]

    def make_prompt(
        tokenizer: Any, length: int, questions: int, generator: np.random.Generator
    ) -> TaskPrompt:
        require_one_question(name, questions)
        group = choose(length)
        return group[generator.integers(len(group))].prompt(tokenizer)

    def make_list(tokenizer: Any, length: int, prompts: int, seed: int) -> list[TaskPrompt]:
        return [question.prompt(tokenizer) for question in choose(length)[:prompts]]

    return Task(
        name,
        unit,
        lengths,
        lengths[:-1],
        lengths[-1:] if len(lengths) > 1 else (),
        lengths,
        max(map(len, by_length.values())),
        1,
        make_prompt,
        make_list,
    )


def _group(name: str, questions: list[_Question]) -> tuple[dict[int, list[_Question]], str]:
    """Return the questions by length, and what a length counts."""
    known = [question.length is not None for question in questions]
    if not any(known):
        # A length of the group that needs no tokenizer.
        return {max(len(question.text) for question in questions): questions}, "characters"
    if not all(known):
        raise UserError(
            f"{name}: question {known.index(False) + 1} has no length and others have one: give "
            "all questions a length, or none"
        )
    by_length: dict[int, list[_Question]] = {}
    for question in questions:
        by_length.setdefault(question.length or 0, []).append(question)
    return by_length, "length"


def _read_file(path: Path) -> Iterator[_Question]:
    try:
        lines = path.read_text("utf-8").split("\n")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: give a .jsonl file of questions") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} as text in UTF-8: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error}); give one object per line") from error
        yield _check(row, where)


def _check(row: Any, where: str) -> _Question:
    """Return a question, or raise with what is wrong and where."""
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: {row!r:.60} is not an object with the fields prompt and answer")
    for field in row:
        if field not in FIELDS:
            raise UserError(f"{where}: unknown field {field!r}; expected {', '.join(FIELDS)}")
    text = row.get("prompt")
    if not isinstance(text, str) or not text:
        raise UserError(f"{where}: prompt is {text!r:.60}; give a text")
    given = row.get("answer")
    accepted = [given] if isinstance(given, str) else given
    if not isinstance(accepted, Sequence) or not accepted:
        raise UserError(f"{where}: answer is {given!r:.60}; give a string, or a list of strings")
    for answer in accepted:
        if not isinstance(answer, str) or not answer.strip():
            raise UserError(f"{where}: answer has {answer!r:.60}; give a string that is not empty")
    match = row.get("match", "exact")
    if match not in MATCHES:
        raise UserError(f"{where}: match is {match!r:.60}; expected {' or '.join(MATCHES)}")
    if match == "exact" and any("\n" in answer.strip() for answer in accepted):
        raise UserError(
            f"{where}: an answer has several lines, and exact compares the first that is written; "
            "use match contains"
        )
    length, max_tokens = row.get("length"), row.get("max_tokens", MAX_TOKENS)
    for field, value in (("length", 1 if length is None else length), ("max_tokens", max_tokens)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LENGTH:
            raise UserError(
                f"{where}: {field} is {value!r:.60}; give a whole number from 1 to {MAX_LENGTH:,}"
            )
    return _Question(text, Marking(tuple(accepted), match, max_tokens), length)
