"""Prompts: the lengths they promise, nested, the same for the same seed."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf.small import llama, tokenizer
from sharpmax import UserError
from sharpmax.hf.scan.prompts import Passkey, choose_prompt, make_inputs

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


@given(depth=st.floats(0, 1), length=st.integers(170, 900))
def test_the_depth_of_a_passkey_is_its_share_of_the_filler(depth, length):
    passkey = Passkey.create(TOKENIZER, 12345)
    tokens = passkey.tokens(length, depth)
    before = text_of(tokens).index("\nThe passkey is 12345") - len(passkey.start)
    assert before == round(depth * (length - passkey.min_length))


def test_numbers_range_from_0_to_999():
    text = text_of(choose_prompt("max", TOKENIZER).tokens(20_000))
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    assert (min(numbers), max(numbers)) == (0, 999)


def test_only_the_start_of_a_prompt_has_special_tokens():
    """A tokenizer that puts a special token, 0, before each text."""

    def with_start(text, add_special_tokens=True, **options):
        tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        return {"input_ids": [0] * add_special_tokens + tokens}

    for name in ("max", "passkey"):
        tokens = choose_prompt(name, with_start).tokens(300)
        assert tokens[0] == 0
        assert 0 not in tokens[1:]


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


def test_inputs_are_checked_as_they_are_made():
    """The first that is too long for the context is the last that is made."""
    made, shares = [], []

    def story(length):
        made.append(length)
        return [7] * length

    prompt = choose_prompt(story, TOKENIZER)
    with pytest.raises(UserError, match=r"513 length are 513 tokens.* lengths up to 9, of those"):
        make_inputs(llama(), prompt, [9_999, 9, 513, 600], shares.append)
    assert made == [9, 513]
    assert shares == [0.0, 0.0]


def test_making_inputs_can_be_stopped():
    made = []

    def stop(share):
        if len(made) == 3:
            raise KeyboardInterrupt

    prompt = choose_prompt(lambda length: made.append(length) or [7] * length, TOKENIZER)
    for lengths in (range(1, 500), None):
        made.clear()
        with pytest.raises(KeyboardInterrupt):
            make_inputs(llama(), prompt, lengths, stop)
        assert len(made) == 3


@pytest.mark.parametrize("name", ["max", "passkey"])
def test_what_cannot_fit_the_context_is_not_made(name):
    prompt = choose_prompt(name, TOKENIZER)
    refused = dataclasses.replace(prompt, tokens=lambda length: pytest.fail("was made"))
    with pytest.raises(UserError, match=r"9,999,999 \w+ are (at least )?9,999,999 tokens"):
        make_inputs(llama(), refused, [9_999_999])
    with pytest.raises(UserError, match=r"must be at most 10,000,000, got 9,999,999,999$"):
        make_inputs(llama(), refused, [9_999_999_999])
