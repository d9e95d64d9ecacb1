"""Prompts: the lengths they promise, nested, the same for the same seed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf.small import tokenizer
from sharpmax import UserError
from sharpmax.hf.scan.prompts import choose_prompt

TOKENIZER = tokenizer()


def text_of(tokens):
    return "".join(map(chr, tokens))


def test_the_maximum_is_the_prompt_of_figure_3():
    prompt = choose_prompt("max", TOKENIZER, seed=3)
    found = re.fullmatch(
        r"What is the maximum in the following sequence: ([\d, ]+)\? The maximum is:",
        text_of(prompt.tokens(9)),
    )
    numbers = [int(one) for one in found[1].split(", ")]
    assert len(numbers) == 9
    assert all(0 <= number <= 999 for number in numbers)
    assert prompt.unit == "numbers"
    assert prompt.default_lengths == (8, 16, 32, 64, 128, 256, 512)


def test_longer_ones_begin_as_shorter_ones_do():
    prompt = choose_prompt("max", TOKENIZER, seed=3)
    short, long = (text_of(prompt.tokens(n)).partition("? ")[0] for n in (5, 600))
    assert long.startswith(short)
    assert prompt.tokens(20) == choose_prompt("max", TOKENIZER, seed=3).tokens(20)
    assert prompt.tokens(20) != choose_prompt("max", TOKENIZER, seed=4).tokens(20)


@given(length=st.integers(170, 900), seed=st.integers(0, 20))
def test_a_passkey_prompt_has_exactly_the_length(length, seed):
    prompt = choose_prompt("passkey", TOKENIZER, seed=seed)
    tokens = prompt.tokens(length)
    assert len(tokens) == length
    key = re.search(r"The passkey is (\d{5})\. Remember it: \1 is the passkey", text_of(tokens))
    assert key is not None
    assert text_of(tokens).endswith("What is the passkey? The passkey is")


def test_a_text_is_cut(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("The quick brown fox.")
    prompt = choose_prompt("text", TOKENIZER, text=file)
    assert text_of(prompt.tokens(9)) == "The quick"
    assert (prompt.max_length, prompt.unit, prompt.name) == (20, "tokens", "text text.txt")


def test_an_own_function_gives_text_or_tokens():
    assert choose_prompt(lambda n: "x" * n, TOKENIZER).tokens(3) == [ord("x")] * 3
    assert choose_prompt(lambda n: [7] * n, TOKENIZER).tokens(3) == [7, 7, 7]

    def story(length):
        return []

    assert choose_prompt(story, TOKENIZER).name == "function story"
    with pytest.raises(UserError, match="story gave no tokens for length 4"):
        choose_prompt(story, TOKENIZER).tokens(4)


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in (("empty", "is empty"), ("binary", "is not a text"), (".", "is not a te")):
        with pytest.raises(UserError, match=message):
            choose_prompt("text", TOKENIZER, text=tmp_path / name)
