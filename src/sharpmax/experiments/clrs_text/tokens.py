"""Texts as tokens: in small vocabularies made for CLRS-Text, or as a model's own tokenizer cuts.

`characters` has a token a character. `pieces` keeps words, the beginnings of numbers and common
punctuation whole, and has a token for each further digit: as Gemma's tokenizer, it spells numbers
digit by digit, in about half as many tokens as there are characters. `pairs` takes the digits of a
fraction together, `0.4` and `17`: two tokens for nearly every number, so that a number's place in a
list can be told from where its tokens stand, and a third fewer tokens again. All are ordinary
Hugging Face tokenizers, saved beside a trained model.

Question and answer are tokenised apart and joined: what a model is asked when it is tested is what
it was asked when it was trained, whatever a tokenizer would merge across the border.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sharpmax._errors import UserError
from sharpmax.experiments.clrs_text.algorithms import ALGORITHMS
from sharpmax.experiments.clrs_text.data import Sample

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
PAD, BEGIN, END = "<pad>", "<begin>", "\n\n"
"""END is what every answer ends with."""

WORDS = (
    *ALGORITHMS,
    *("end", "in_hull", "in_mst", "intersect", "is_bridge", "is_cut", "key", "match", "median"),
    *("min", "pi", "Pi", "pred", "return", "root", "scc_id", "selected", "start", "string"),
    *("target", "topo", "topo_head"),
)
"""Of the questions: the algorithms, and the names of what goes in and comes out."""
SIGNS = (":\n", "]\n", ": [", "], [", ", ", *(f" {n}" for n in range(10)))
FRACTIONS = ("0.", " 0.", "-0.", " -0.")
"""What a number below 1 begins with."""


@dataclass(frozen=True)
class Vocabulary:
    """What is one token besides every character."""

    whole: tuple[str, ...] = ()
    pairs: bool = False
    """Whether the second and third decimal are one token."""


VOCABULARIES = {
    "characters": Vocabulary(),
    "pieces": Vocabulary((*WORDS, *SIGNS, *FRACTIONS)),
    "pairs": Vocabulary(
        (*WORDS, *SIGNS, *(f"{begin}{n}" for begin in FRACTIONS for n in range(10))), pairs=True
    ),
}
"""By name."""
PAIRS = tuple(f"{n:02}" for n in range(100))


@dataclass(frozen=True)
class Example:
    """A sample as tokens."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    """With the token that ends it."""
    size: int = 0
    """Of the problem."""

    @property
    def length(self) -> int:
        return len(self.question) + len(self.answer)


@dataclass(frozen=True)
class Tokens:
    """A tokenizer, as questions and answers need it."""

    tokenizer: Any
    """Of Hugging Face."""
    name: str

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return len(self.tokenizer)

    @property
    def end(self) -> int:
        """The token that ends an answer."""
        return int(self.tokenizer.eos_token_id)

    @property
    def pad(self) -> int:
        """What fills a batch after an answer's end: no token of the answer ever sees it."""
        pad = self.tokenizer.pad_token_id
        return self.end if pad is None else int(pad)

    def examples(self, samples: Sequence[Sample]) -> list[Example]:
        """Many samples as tokens; a tokenizer is faster at many."""
        if not samples:
            return []
        questions = self.tokenizer([sample.question for sample in samples])["input_ids"]
        answers = self.tokenizer([sample.answer for sample in samples], add_special_tokens=False)
        return [
            Example(self._begun(question), self._ended(answer), sample.size)
            for sample, question, answer in zip(
                samples, questions, answers["input_ids"], strict=True
            )
        ]

    def _begun(self, question: list[int]) -> tuple[int, ...]:
        # Tokenizers that end a text do not know that the answer is still to come.
        return tuple(question[:-1] if question[-1] == self.end else question)

    def _ended(self, answer: list[int]) -> tuple[int, ...]:
        return tuple(answer if answer[-1] == self.end else [*answer, self.end])

    def is_right(self, sample: Sample, said: Sequence[int]) -> bool:
        """Whether these tokens are the answer, to the letter; how its last line ends is no part of
        it.
        """
        said = list(said)
        if self.end not in said:
            return False
        text = self.tokenizer.decode(said[: said.index(self.end)])
        return str(text).strip() == sample.answer.strip()


def made(name: str) -> Tokens:
    """One of `VOCABULARIES`."""
    if name not in VOCABULARIES:
        raise UserError(f"unknown vocabulary {name!r}: expected one of {', '.join(VOCABULARIES)}")
    vocabulary = VOCABULARIES[name]
    pairs = PAIRS if vocabulary.pairs else ()
    known = list(dict.fromkeys([PAD, BEGIN, END, *CHARACTERS, *vocabulary.whole, *pairs]))
    # The longest first: `topo_head` is not `topo` and the rest.
    whole = sorted((*vocabulary.whole, END), key=len, reverse=True)
    # Pairs after a first decimal only: numbers of items are spelled digit by digit.
    patterns = [r"(?<=\.\d)\d\d"] if pairs else []
    pattern = "|".join([*patterns, *(_piece(piece) for piece in whole), r"[\s\S]"])
    backend = Tokenizer(models.WordLevel({piece: place for place, piece in enumerate(known)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, known.index(BEGIN))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, bos_token=BEGIN, eos_token=END
    )
    return Tokens(tokenizer, name)


def _piece(piece: str) -> str:
    # A word only where it ends: `min` is no part of `minimum`.
    return re.escape(piece) + (r"(?![A-Za-z_])" if piece.replace("_", "").isalpha() else "")
