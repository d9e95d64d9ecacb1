"""Tokens: every text comes back whole, the border between question and answer is kept."""

from __future__ import annotations

import pytest
from clrs_text.small import SAMPLE, gemma_folder
from sharpmax.experiments.clrs_text.tokens import Tokens
from transformers import AutoTokenizer

from sharpmax import UserError
from sharpmax.experiments.clrs_text import tokens
from sharpmax.experiments.clrs_text.data import Sample, read

ALL = read(SAMPLE / "train", "train").samples + read(SAMPLE / "test", "test").samples


@pytest.mark.parametrize("name", tokens.VOCABULARIES)
def test_all_thirty_algorithms_come_back_to_the_letter(name, tmp_path):
    made = tokens.made(name)
    made.tokenizer.save_pretrained(tmp_path)
    again = Tokens(AutoTokenizer.from_pretrained(tmp_path), name)
    for sample, one in zip(ALL, made.examples(ALL), strict=True):
        begin, *question = one.question
        assert begin == made.tokenizer.bos_token_id
        assert made.tokenizer.decode(question) == sample.question
        assert made.tokenizer.decode(one.answer) == sample.answer
        assert one.answer[-1] == made.end == one.answer[one.answer.index(made.end)]
        assert made.is_right(sample, one.answer)
    assert again.examples(ALL) == made.examples(ALL)
    assert (again.end, again.pad) == (made.end, made.pad)


def test_pieces_are_few_and_spell_numbers_by_digits():
    sample = Sample("minimum", 3, 0, "minimum:\nkey: [0.072 -0.4 0.0]\nmin:\n", "11\n\n")
    made = tokens.made("pieces")
    (one,) = made.examples([sample])
    assert made.tokenizer.convert_ids_to_tokens(one.question)[1:] == [
        *("minimum", ":\n", "key", ": [", "0.", "0", "7", "2", " -0.", "4", " 0.", "0", "]\n"),
        *("min", ":\n"),
    ]
    assert made.tokenizer.convert_ids_to_tokens(one.answer) == ["1", "1", "\n\n"]


def test_pairs_take_two_tokens_for_a_fraction_and_spell_indices():
    text = "minimum:\nkey: [0.072 0.41 -0.417 0.5]\nmin:\n"
    made = tokens.made("pairs")
    (one,) = made.examples([Sample("minimum", 4, 0, text, "11\n\n")])
    assert made.tokenizer.convert_ids_to_tokens(one.question)[1:] == [
        *("minimum", ":\n", "key", ": [", "0.0", "72", " 0.4", "1", " -0.4", "17", " 0.5", "]\n"),
        *("min", ":\n"),
    ]
    assert made.tokenizer.convert_ids_to_tokens(one.answer) == ["1", "1", "\n\n"]


def test_only_the_answer_to_the_letter_is_right():
    sample = Sample("minimum", 12, 0, "?", "11\n\n")
    made = tokens.made("characters")
    (one,) = made.examples([sample])
    digit, _, end = one.answer
    assert made.is_right(sample, [digit, digit, end, digit])  # what follows the end is not said
    assert not made.is_right(sample, [digit, end])
    assert not made.is_right(sample, [digit, digit, digit, end])
    assert not made.is_right(sample, [digit, digit])  # without an end


def test_a_model_s_own_tokenizer_ends_answers_and_not_questions(tmp_path):
    own = Tokens(AutoTokenizer.from_pretrained(gemma_folder(tmp_path)), "own")
    sample = Sample("minimum", 4, 0, "min:\n", "2\n\n")
    (one,) = own.examples([sample])
    assert one.question == tuple(b"min:\n")
    assert one.answer == (*b"2\n\n", 1)
    assert own.is_right(sample, [*b"2", 1])


def test_an_unknown_vocabulary_is_refused():
    with pytest.raises(UserError, match="unknown vocabulary 'words': expected one of characters, "):
        tokens.made("words")
