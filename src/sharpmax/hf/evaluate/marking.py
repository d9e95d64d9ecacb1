"""Decide whether what a model wrote is right, where answers are strings and not only numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Match = Literal["exact", "contains", "all"]

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f]")
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for the first tokens of a character that needs several."""


@dataclass(frozen=True)
class Marking:
    """Say what counts as a right answer to a question, and how much a model may write.

    - `exact`: the first line that is written equals an accepted answer. White space around it and
      a full stop at its end do not count; upper and lower case do.
    - `contains`: an accepted answer is somewhere in what is written, in upper or lower case.
    - `all`: the same for each accepted answer, and each is marked on its own. The share that is
      found is RULER's score, `string_match_all` (arXiv 2404.06654).

    Attributes:
        accepted: The accepted answers.
        match: How they are compared with what is written.
        max_tokens: The number of tokens after which writing ends.
    """

    accepted: tuple[str, ...]
    match: Match
    max_tokens: int

    @property
    def parts(self) -> int:
        """The number of marks for one question."""
        return len(self.accepted) if self.match == "all" else 1

    def mark(self, written: str) -> tuple[bool, ...]:
        """Return whether each part of the answer is right.

        Args:
            written: What the model wrote.
        """
        if self.match == "exact":
            return (_first_line(written) in map(_trim, self.accepted),)
        found = tuple(_clean(answer) in _clean(written) for answer in self.accepted)
        return found if self.match == "all" else (any(found),)

    def is_settled(self, written: str) -> bool:
        """Return whether no further text can change the marks, so that writing can end early.

        Args:
            written: What the model has written so far.
        """
        if self.match != "exact":
            return all(self.mark(written))
        if "\n" in written.lstrip():
            return True
        start = _trim(written.rstrip(_UNFINISHED))
        return not any(_trim(answer).startswith(start) for answer in self.accepted)


def _first_line(text: str) -> str:
    return _trim(text.lstrip().partition("\n")[0])


def _trim(text: str) -> str:
    return text.strip().removesuffix(".").rstrip()


def _clean(text: str) -> str:
    """Return a text as RULER compares it: no control characters, lower case."""
    return _CONTROL_CHARACTERS.sub("\n", text.strip()).strip().lower()
