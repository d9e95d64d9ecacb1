"""Tokens: every text comes back whole, the border between question and answer is kept."""

from __future__ import annotations

import pytest
from clrs_text.small import SAMPLE, gemma_folder
from transformers import AutoTokenizer

from sharpmax import UserError
from sharpmax.experiments.clrs_text import tokenization
from sharpmax.experiments.clrs_text.data import Sample, load_samples
from sharpmax.experiments.clrs_text.tokenization import QATokenizer, build_tokenizer

ALL = (
    load_samples(SAMPLE / "train", "train").samples + load_samples(SAMPLE / "test", "test").samples
)


@pytest.mark.parametrize("name", tokenization.VOCABULARIES)
def test_all_thirty_algorithms_come_back_to_the_letter(name, tmp_path):
    made = build_tokenizer(name)
    made.tokenizer.save_pretrained(tmp_path)
    again = QATokenizer(AutoTokenizer.from_pretrained(tmp_path), name)
    for sample, one in zip(ALL, made.encode(ALL), strict=True):
        begin, *question = one.question
        assert begin == made.tokenizer.bos_token_id
        assert made.tokenizer.decode(question) == sample.question
        assert made.tokenizer.decode(one.answer) == sample.answer
        assert one.answer[-1] == made.end_id == one.answer[one.answer.index(made.end_id)]
        assert made.is_correct(sample, one.answer)
    assert again.encode(ALL) == made.encode(ALL)
    assert (again.end_id, again.pad_id) == (made.end_id, made.pad_id)


def test_pieces_are_few_and_spell_numbers_by_digits():
    sample = Sample("minimum", 3, 0, "minimum:\nkey: [0.072 -0.4 0.0]\nmin:\n", "11\n\n")
    made = build_tokenizer("pieces")
    (one,) = made.encode([sample])
    assert made.tokenizer.convert_ids_to_tokens(one.question)[1:] == [
        *("minimum", ":\n", "key", ": [", "0.", "0", "7", "2", " -0.", "4", " 0.", "0", "]\n"),
        *("min", ":\n"),
    ]
    assert made.tokenizer.convert_ids_to_tokens(one.answer) == ["1", "1", "\n\n"]


def test_pairs_take_two_tokens_for_a_fraction_and_spell_indices():
    text = "minimum:\nkey: [0.072 0.41 -0.417 0.5]\nmin:\n"
    made = build_tokenizer("pairs")
    (one,) = made.encode([Sample("minimum", 4, 0, text, "11\n\n")])
    assert made.tokenizer.convert_ids_to_tokens(one.question)[1:] == [
        *("minimum", ":\n", "key", ": [", "0.0", "72", " 0.4", "1", " -0.4", "17", " 0.5", "]\n"),
        *("min", ":\n"),
    ]
    assert made.tokenizer.convert_ids_to_tokens(one.answer) == ["1", "1", "\n\n"]


def test_only_the_answer_to_the_letter_is_right():
    sample = Sample("minimum", 12, 0, "?", "11\n\n")
    made = build_tokenizer("characters")
    (one,) = made.encode([sample])
    digit, _, end = one.answer
    assert made.is_correct(sample, [digit, digit, end, digit])  # what follows the end is not said
    assert not made.is_correct(sample, [digit, end])
    assert not made.is_correct(sample, [digit, digit, digit, end])
    assert not made.is_correct(sample, [digit, digit])  # without an end


def test_a_model_s_own_tokenizer_ends_answers_and_not_questions(tmp_path):
    own = QATokenizer(AutoTokenizer.from_pretrained(gemma_folder(tmp_path)), "own")
    sample = Sample("minimum", 4, 0, "min:\n", "2\n\n")
    (one,) = own.encode([sample])
    assert one.question == tuple(b"min:\n")
    assert one.answer == (*b"2\n\n", 1)
    assert own.is_correct(sample, [*b"2", 1])


def test_an_unknown_vocabulary_is_refused():
    with pytest.raises(UserError, match="unknown vocabulary 'words': expected one of characters, "):
        build_tokenizer("words")
