"""Tasks: the answer is in the text, and tokens are those of text and answer together."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hf.small import llama, tokenizer
from sharpmax._errors import UserError
from sharpmax.hf.evaluate.formats import HELD_OUT_FORMATS, NAMES, TUNING_FORMATS
from sharpmax.hf.evaluate.resolve import resolve_task
from sharpmax.hf.evaluate.tasks import (
    HELD_OUT_TASKS,
    TASKS,
    TUNING_TASKS,
    hash_prompts,
    make_prompts,
)


class Characters:
    """The tokenizer of single characters, decoding without spaces between them."""

    def __init__(self):
        self.inner = tokenizer()

    def __call__(self, *arguments, **options):
        return self.inner(*arguments, **options)

    def decode(self, tokens):
        return "".join(map(chr, tokens))


CHARACTERS = Characters()


def make(name, length, questions=1, seed=0, words=CHARACTERS):
    return TASKS[name].make_prompt(words, length, questions, np.random.default_rng([seed, length]))


def texts(prompt):
    """(text with question, answer) of each question."""
    return [
        (CHARACTERS.decode([*prompt.context, *question]), CHARACTERS.decode(answer))
        for question, answer in zip(prompt.questions, prompt.answers, strict=True)
    ]


def test_lookup_asks_for_the_code_of_a_listed_name():
    prompt = make("lookup", 12, 5)
    pairs = texts(prompt)
    codes = dict(re.findall(r"The code of (\w+) is (\d{3})\.\n", pairs[0][0]))
    assert len(codes) == 12
    names = [re.search(r"What is the code of (\w+)\?", text)[1] for text, _ in pairs]
    assert len(set(names)) == 5
    for (text, answer), name in zip(pairs, names, strict=True):
        assert text.endswith(f"Answer: The code of {name} is")
        assert answer == f" {codes[name]}"
    # All that the questions share is read once.
    assert CHARACTERS.decode(prompt.context).endswith("\n\nQuestion: What is the code of ")


def test_max_asks_for_the_largest_number():
    ((text, answer),) = texts(make("max", 9))
    numbers = re.search(r"sequence: (.*)\? The maximum is:$", text)[1].split(", ")
    assert len(numbers) == 9
    assert answer == f" {max(map(int, numbers))}"


def test_a_passkey_is_hidden_in_a_text_of_exactly_this_length():
    for length in (200, 333):
        prompt = make("passkey", length)
        ((text, answer),) = texts(prompt)
        assert len(prompt.context) + len(prompt.questions[0]) == length
        assert re.fullmatch(r" \d{5}", answer)
        assert text.count(answer.strip()) == 2
        assert text.endswith("The passkey is")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_tokens_are_those_of_the_whole_text(name, smollm2_tokenizer):
    prompt = make(name, 100 if name == "passkey" else 8, words=smollm2_tokenizer)
    for question, answer in zip(prompt.questions, prompt.answers, strict=True):
        whole = [*prompt.context, *question, *answer]
        assert question
        assert answer
        if name != "passkey":  # its filler is cut at the length, inside a word
            assert smollm2_tokenizer(smollm2_tokenizer.decode(whole))["input_ids"] == whole
        assert prompt.tokens >= len(whole)


@pytest.fixture(scope="module")
def smollm2_tokenizer():
    from transformers import AutoTokenizer

    from sharpmax.hf.loading import convert

    return AutoTokenizer.from_pretrained(convert.model_folder("smollm2"))


def test_the_same_seed_makes_the_same_prompts():
    task = TASKS["lookup"]
    first, same, other = (
        make_prompts(llama(), task, tokenizer(), [4, 2], 3, 2, seed) for seed in (0, 0, 1)
    )
    assert first == same != other
    assert hash_prompts(first.values()) == hash_prompts(same.values())
    assert hash_prompts(first.values()) != hash_prompts(other.values())
    assert list(first) == [2, 4]
    assert len({prompt.context for prompt in first[4]}) == 3


def test_a_function_is_a_task():
    def echo(length, generator):
        number = int(generator.integers(10))
        return f"{'blah ' * length}The number is {number}. I repeat, it is", f" {number}"

    task = resolve_task(echo)
    assert task.name == "function echo"
    ((text, answer),) = texts(task.make_prompt(CHARACTERS, 3, 1, np.random.default_rng(0)))
    assert text.count("blah") == 3
    assert f"is{answer}." in text
    with pytest.raises(UserError, match="one question per prompt, got questions=2"):
        task.make_prompt(tokenizer(), 3, 2, np.random.default_rng(0))
    with pytest.raises(UserError, match="task 'function echo' has no default lengths: give"):
        make_prompts(llama(), task, tokenizer(), (), 2, 1, 0)


@pytest.mark.parametrize(
    ("task", "lengths", "prompts", "questions", "message"),
    [
        ("lookup", [4], 2, 5, "asks for 5 different names of 4: give at most 4"),
        ("lookup", [len(NAMES) + 1], 2, 1, "'lookup' has 4,900 names, got length 4,901"),
        ("lookup", [4, 64], 1, 1, r"64 names make a prompt of 1,\d+ tokens.*use lengths up to 4$"),
        ("lookup", [64], 1, 1, "use shorter lengths"),
        ("lookup", [], 1, 1, "lengths is empty"),
        ("lookup", [0], 1, 1, "whole numbers from 1 up, got 0"),
        ("lookup", [4], 0, 1, "prompts=0"),
        ("max", [4], 1, 2, "'max' has one question per prompt, got questions=2"),
        ("passkey", [10], 1, 1, "at least .* tokens, got length 10"),
        ("passkey", [200], 1, 3, "one question per prompt"),
        ("passkey", [9_999_999], 1, 1, "9,999,999 tokens do not fit the context of this model"),
        ("max", [9_999_999], 1, 1, "9,999,999 numbers do not fit the context of this model"),
        ("max", [9_999_999_999], 1, 1, "lengths must be at most 10,000,000"),
        ("lookup", [4, 5], 10**9, 4, "give at most 1,000,000 questions in all"),
    ],
)
def test_what_cannot_be_asked_is_refused(task, lengths, prompts, questions, message):
    with pytest.raises(UserError, match=message):
        make_prompts(llama(), TASKS[task], tokenizer(), lengths, prompts, questions, 0)


def test_a_prompt_that_fills_the_context_is_accepted():
    (prompt,) = make_prompts(llama(), TASKS["lookup"], tokenizer(), [4], 1, 1, 0)[4]
    fitting, short = llama(context=prompt.tokens), llama(context=prompt.tokens - 1)
    make_prompts(fitting, TASKS["lookup"], tokenizer(), [4], 1, 1, 0)
    with pytest.raises(UserError, match="use shorter lengths"):
        make_prompts(short, TASKS["lookup"], tokenizer(), [4], 1, 1, 0)


def test_an_unknown_task():
    with pytest.raises(
        UserError, match="unknown task 'poem': expected one of max, passkey, lookup"
    ):
        resolve_task("poem")


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"passkey", "max"}))
def test_every_format_of_lookup_says_where_its_answer_is(name):
    words = tokenizer()
    prompt = make(name, 12, 5, words=words)
    text = CHARACTERS.decode(prompt.context)
    assert len(prompt.needles) == 5
    for question, answer, (start, stop) in zip(
        prompt.questions, prompt.answers, prompt.needles, strict=True
    ):
        number = CHARACTERS.decode(answer).strip()
        assert CHARACTERS.decode(prompt.context[start:stop]) == number
        # The name that is asked for stands beside this number, and nowhere else in the text.
        asked = set(re.findall(r"\w+", CHARACTERS.decode(prompt.context[-3:] + question).title()))
        (named,) = asked & set(NAMES) & set(re.findall(r"\w+", text.title())) - {"Name"}
        assert len(re.findall(rf"\b{named}\b", text.title())) == 1
        assert abs(text.title().index(named) - start) < 40


@pytest.mark.parametrize(("name", "length"), [("max", 60), ("passkey", 200), ("lookup", 12)])
def test_every_place_of_an_answer_and_every_other_number_is_known(name, length):
    words = tokenizer()
    for seed in range(20):
        prompt = make(name, length, seed=seed, words=words)
        text = CHARACTERS.decode(prompt.context)
        numbers = [match.span() for match in re.finditer(r"\d+", text)]
        assert list(prompt.numbers) == numbers
        number = CHARACTERS.decode(prompt.answers[0]).strip()
        places = [(start, stop) for start, stop in numbers if text[start:stop] == number]
        if name == "lookup":  # another name may have the same code, which is not the answer
            assert prompt.copies == ((),)
        else:
            assert [*prompt.needles, *prompt.copies[0]] == places
    assert name != "passkey" or len(places) == 2


def test_the_place_of_a_user_answer_is_known_if_there_is_one(smollm2_tokenizer):
    def make_prompt(text):
        task = resolve_task(lambda length, generator: (text, " 123"))
        return task.make_prompt(smollm2_tokenizer, 1, 1, np.random.default_rng(0))

    prompt = make_prompt("There are 1234 boats and 123 sails. The number of sails is")
    ((start, stop),) = prompt.needles
    assert smollm2_tokenizer.decode(prompt.context[start:stop]) == "123"
    assert len(prompt.numbers) == 2
    assert make_prompt("123 boats and 123 sails. The number is").needles == ()
    assert make_prompt("Some boats and some sails. The number is").needles == ()


def test_formats_that_are_tuned_on_are_not_among_those_held_back():
    assert not set(TUNING_TASKS) & set(HELD_OUT_TASKS)
    assert len(HELD_OUT_TASKS) >= 4
    lines = [lookup.line for lookup in (*TUNING_FORMATS, *HELD_OUT_FORMATS)]
    assert len(set(lines)) == len(lines)
