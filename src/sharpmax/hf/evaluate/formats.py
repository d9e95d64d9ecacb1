"""Lookup in many formats: a text pairs names with numbers, and each question asks for one number.

A model that looks names up in one wording may fail in another. Tuning mixes several formats so that
the result transfers, and keeps others back to see whether it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from sharpmax._errors import UserError

NAMES = tuple(
    "".join(letters).capitalize()
    for letters in product("bdfgklmnprstvz", "aeiou", "bdfgklmnprstvz", "aeiou")
)
"""4,900 names of four letters, such as Bavo."""

FILLER_SENTENCES = (
    "The river runs past the mill and on to the sea.",
    "A heron stands in the shallows and waits.",
    "Clouds drift over the hills, and the road is quiet.",
    "Somebody has left a gate open.",
    "Two boats lie at the jetty, and nobody is in sight.",
    "The baker opens his shop before the sun is up.",
    "Rain has washed the dust off the leaves.",
    "A bell rings twice, far away.",
)


@dataclass(frozen=True)
class LookupQuestion:
    """A question about a text, and where the text has its answer.

    Attributes:
        text: What to ask, up to where the answer begins.
        answer: The right answer, with the space before it if the format has one.
        needle: Where the number is in the text, as the positions of its first character and of the
            character after its last.
    """

    text: str
    answer: str
    needle: tuple[int, int]


@dataclass(frozen=True)
class LookupFormat:
    """A layout of names and numbers, and the wording of the question.

    `{name}`, `{lower}` (the name in lower case) and `{number}` are replaced.

    Attributes:
        name: The name of the task.
        line: What the text says about one name.
        question: What follows the text, up to where the answer begins.
        before: The beginning of the text.
        after: The end of the text.
        space: Whether the answer begins with a space.
        filler: The number of filler sentences before each line.
    """

    name: str
    line: str
    question: str
    before: str = ""
    after: str = "\n"
    space: bool = True
    filler: int = 0

    def make(
        self, length: int, questions: int, generator: np.random.Generator
    ) -> tuple[str, list[LookupQuestion]]:
        """Return a random text with `length` names, and questions for some of them."""
        if length > len(NAMES):
            raise UserError(f"task {self.name!r} has {len(NAMES):,} names, got length {length:,}")
        if questions > length:
            raise UserError(
                f"task {self.name!r} asks for {questions} different names of {length}: give at "
                f"most {length} questions"
            )
        names = [NAMES[index] for index in generator.choice(len(NAMES), length, replace=False)]
        numbers = generator.integers(100, 1000, size=length).tolist()
        text, needles = self.before, []
        for name, number in zip(names, numbers, strict=True):
            for index in generator.integers(0, len(FILLER_SENTENCES), size=self.filler):
                text += FILLER_SENTENCES[index] + " "
            line = self._fill(self.line, name, number)
            start = len(text) + len(self._fill(self.line.partition("{number}")[0], name, number))
            needles.append((start, start + len(str(number))))
            text += line
        space = " " if self.space else ""
        asked = [
            LookupQuestion(
                self._fill(self.question, names[index], numbers[index]),
                f"{space}{numbers[index]}",
                needles[index],
            )
            for index in generator.choice(length, questions, replace=False)
        ]
        return text + self.after, asked

    @staticmethod
    def _fill(template: str, name: str, number: int) -> str:
        # Not str.format: some formats contain braces.
        text = template.replace("{name}", name).replace("{lower}", name.lower())
        return text.replace("{number}", str(number))


TUNING_FORMATS = (
    LookupFormat(
        "lookup",
        "The code of {name} is {number}.\n",
        "Question: What is the code of {name}?\nAnswer: The code of {name} is",
    ),
    LookupFormat(
        "rooms",
        "{name} lives in room {number}. ",
        "In which room does {name} live? {name} lives in room",
        after="\n\n",
    ),
    LookupFormat(
        "extensions",
        "- {name}: {number}\n",
        "Question: What is the extension of {name}?\nAnswer: {name}:",
        before="Telephone extensions:\n",
    ),
    LookupFormat(
        "prices",
        "A {lower} costs {number} dollars.\n",
        "Q: How much does a {lower} cost?\nA: A {lower} costs",
        before="Price list of the shop.\n",
    ),
    LookupFormat(
        "json",
        '"{lower}": {number}, ',
        'Question: What is the value of "{lower}"?\nAnswer: "{lower}":',
        before="{",
        after="}\n\n",
    ),
    LookupFormat(
        "needles",
        "One of the special magic numbers for {name} is: {number}. ",
        "What is the special magic number for {name} mentioned in the text? "
        "The special magic number for {name} is",
        before="Some special magic numbers are hidden within the following text. Memorize them.\n",
        filler=2,
    ),
)
"""Formats that `tune` mixes unless you choose tasks."""

HELD_OUT_FORMATS = (
    LookupFormat(
        "births",
        "{name} was born in {number}, ",
        "Question: When was {name} born?\nAnswer: {name} was born in",
        before="Notes. ",
    ),
    LookupFormat(
        "scores",
        "{name} scored {number} points; ",
        "How many points did {name} score? {name} scored",
        before="Results of the tournament. ",
    ),
    LookupFormat(
        "settings",
        "{lower} = {number}\n",
        "Question: What is the value of {lower}?\nAnswer: {lower} =",
        before="[settings]\n",
    ),
    LookupFormat(
        "records",
        '<item name="{name}">{number}</item>\n',
        'Question: Which item is named {name}?\nAnswer: <item name="{name}">',
        before="<list>\n",
        after="</list>\n\n",
        space=False,
    ),
    LookupFormat(
        "boxes",
        "The box with {number} coins belongs to {name}.\n",
        "Question: How many coins are in the box of {name}?\nAnswer: The box of {name} has",
    ),
)
"""Formats that `tune` never sees by default, so that they show how its result transfers."""

OTHER_FORMATS = (
    LookupFormat(
        "orders",
        "Order {number} was placed by {name}.\n",
        "Question: Which order was placed by {name}?\nAnswer: The order placed by {name} is order",
        before="Orders of the day:\n",
    ),
)
"""Formats that `tune` neither mixes nor checks by default. The number comes before the name, and
the small models here cannot look it up among 40 names, tuned or not."""
