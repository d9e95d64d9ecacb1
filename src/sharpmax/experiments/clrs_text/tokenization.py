"""CLRS-Text as tokens: in small vocabularies made for it, or with a model's own tokenizer.

`characters` has one token per character. `pieces` keeps words, the beginnings of numbers and common
punctuation whole, and has one token for each further digit: like Gemma's tokenizer it spells
numbers digit by digit, in about half as many tokens as characters. `pairs` joins the digits of a
fraction, `0.4` and `17`: almost every number has two tokens, so that the position of a number in a
list can be told from the position of its tokens, and texts are a third shorter again. All are
ordinary Hugging Face tokenizers and are saved with a trained model.

Question and answer are tokenised separately and joined. A question thus has the same tokens in
training and in testing, whatever a tokenizer would merge across the border.
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
"""Every answer ends with END."""

WORDS = (
    *ALGORITHMS,
    *("end", "in_hull", "in_mst", "intersect", "is_bridge", "is_cut", "key", "match", "median"),
    *("min", "pi", "Pi", "pred", "return", "root", "scc_id", "selected", "start", "string"),
    *("target", "topo", "topo_head"),
)
"""Words of the questions: the algorithms, and the names of their inputs and outputs."""
SIGNS = (":\n", "]\n", ": [", "], [", ", ", *(f" {n}" for n in range(10)))
FRACTIONS = ("0.", " 0.", "-0.", " -0.")
"""Beginnings of numbers below 1."""
PAIRS = tuple(f"{n:02}" for n in range(100))


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a vocabulary besides the characters."""

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


@dataclass(frozen=True)
class Example:
    """A sample as tokens."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    """The tokens of the answer and the token that ends it."""
    size: int = 0
    """Size of the problem."""

    @property
    def length(self) -> int:
        """Number of tokens of question and answer."""
        return len(self.question) + len(self.answer)


@dataclass(frozen=True)
class QATokenizer:
    """A Hugging Face tokenizer, used for questions and answers."""

    tokenizer: Any
    name: str

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return len(self.tokenizer)

    @property
    def end_id(self) -> int:
        """The token that ends an answer."""
        return int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        """The token that fills a batch after the end of an answer; no answer token sees it."""
        pad = self.tokenizer.pad_token_id
        return self.end_id if pad is None else int(pad)

    def encode(self, samples: Sequence[Sample]) -> list[Example]:
        """Tokenise samples; tokenizers are faster at many texts in one call."""
        if not samples:
            return []
        questions = self.tokenizer([sample.question for sample in samples])["input_ids"]
        answers = self.tokenizer([sample.answer for sample in samples], add_special_tokens=False)
        return [
            Example(self._strip_end(question), self._add_end(answer), sample.size)
            for sample, question, answer in zip(
                samples, questions, answers["input_ids"], strict=True
            )
        ]

    def _strip_end(self, question: list[int]) -> tuple[int, ...]:
        # Some tokenizers end every text, but the answer is still to come.
        return tuple(question[:-1] if question[-1] == self.end_id else question)

    def _add_end(self, answer: list[int]) -> tuple[int, ...]:
        return tuple(answer if answer[-1] == self.end_id else [*answer, self.end_id])

    def is_correct(self, sample: Sample, tokens: Sequence[int]) -> bool:
        """Return whether the tokens spell the exact answer, up to white space at its ends."""
        tokens = list(tokens)
        if self.end_id not in tokens:
            return False
        text = self.tokenizer.decode(tokens[: tokens.index(self.end_id)])
        return str(text).strip() == sample.answer.strip()


def build_tokenizer(name: str) -> QATokenizer:
    """Build the tokenizer of one of the `VOCABULARIES`."""
    if name not in VOCABULARIES:
        raise UserError(f"unknown vocabulary {name!r}: expected one of {', '.join(VOCABULARIES)}")
    vocabulary = VOCABULARIES[name]
    pairs = PAIRS if vocabulary.pairs else ()
    tokens = list(dict.fromkeys([PAD, BEGIN, END, *CHARACTERS, *vocabulary.whole, *pairs]))
    # The longest first: `topo_head` must not become `topo` and the rest.
    whole = sorted((*vocabulary.whole, END), key=len, reverse=True)
    # Pairs only after a first decimal: indices of items are spelled digit by digit.
    patterns = [r"(?<=\.\d)\d\d"] if pairs else []
    pattern = "|".join([*patterns, *(_pattern(piece) for piece in whole), r"[\s\S]"])
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokens.index(BEGIN))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, bos_token=BEGIN, eos_token=END
    )
    return QATokenizer(tokenizer, name)


def _pattern(piece: str) -> str:
    # A word must end where the piece ends: `min` is no part of `minimum`.
    return re.escape(piece) + (r"(?![A-Za-z_])" if piece.replace("_", "").isalpha() else "")
