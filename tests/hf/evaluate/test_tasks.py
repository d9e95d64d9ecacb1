"""Questions with known answers: what is asked is in the text, and tokens are those of the whole."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hf.small import llama, tokenizer
from sharpmax._errors import UserError
from sharpmax.hf.evaluate.tasks import NAMES, TASKS, cases, task_of


def make(name, length, questions=1, seed=0, words=None):
    return TASKS[name].case(
        words or tokenizer(), length, questions, np.random.default_rng([seed, length])
    )


def texts(case, words):
    """(text with question, answer) of each question."""
    return [
        (words.decode([*case.context, *ask]), words.decode([*answer]))
        for ask, answer in zip(case.questions, case.answers, strict=True)
    ]


class Spaceless:
    """The characters' tokenizer, which decodes characters with spaces between them otherwise."""

    def __init__(self):
        self.inner = tokenizer()

    def __call__(self, *arguments, **options):
        return self.inner(*arguments, **options)

    def decode(self, tokens):
        return "".join(map(chr, tokens))


def test_a_code_looked_up_is_that_of_the_name():
    words = Spaceless()
    case = make("lookup", 12, 5, words=words)
    found = texts(case, words)
    listed = dict(re.findall(r"The code of (\w+) is (\d{3})\.\n", found[0][0]))
    assert len(listed) == 12
    asked = [re.search(r"What is the code of (\w+)\?", text)[1] for text, _ in found]
    assert len(set(asked)) == 5
    for (text, answer), name in zip(found, asked, strict=True):
        assert text.endswith(f"Answer: The code of {name} is")
        assert answer == f" {listed[name]}"
    assert words.decode(case.context).endswith("\n\nQuestion: What is the code of ")


def test_the_largest_number_is_the_answer():
    words = Spaceless()
    ((text, answer),) = texts(make("max", 9, words=words), words)
    numbers = re.search(r"sequence: (.*)\? The maximum is:$", text)[1].split(", ")
    assert len(numbers) == 9
    assert answer == f" {max(map(int, numbers))}"


def test_a_passkey_is_in_the_text_of_exactly_this_length():
    words = Spaceless()
    for length in (200, 333):
        case = make("passkey", length, words=words)
        ((text, answer),) = texts(case, words)
        assert len(case.context) + len(case.questions[0]) == length
        assert re.fullmatch(r" \d{5}", answer)
        assert text.count(answer.strip()) == 2
        assert text.endswith("The passkey is")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_tokens_are_those_of_the_whole_text(name, smollm2_tokenizer):
    case = make(name, 100 if name == "passkey" else 8, words=smollm2_tokenizer)
    for ask, answer in zip(case.questions, case.answers, strict=True):
        whole = [*case.context, *ask, *answer]
        assert ask
        assert answer
        if name != "passkey":  # whose filler ends where the length does, within a word
            assert smollm2_tokenizer(smollm2_tokenizer.decode(whole))["input_ids"] == whole
        assert case.tokens >= len(whole)


@pytest.fixture(scope="module")
def smollm2_tokenizer():
    from transformers import AutoTokenizer

    from sharpmax.hf.loading import catalogue

    return AutoTokenizer.from_pretrained(catalogue.model_folder("smollm2"))


def test_the_same_seed_makes_the_same_texts():
    task = TASKS["lookup"]
    made = [cases(llama(), task, tokenizer(), [2, 4], 3, 2, seed) for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    assert list(made[0]) == [2, 4]
    assert len({case.context for case in made[0][4]}) == 3


def test_a_task_of_ones_own():
    def echo(length, generator):
        number = int(generator.integers(10))
        return f"{'blah ' * length}The number is {number}. I repeat, it is", f" {number}"

    task = task_of(echo)
    assert task.name == "function echo"
    case = task.case(tokenizer(), 3, 1, np.random.default_rng(0))
    ((text, answer),) = texts(case, Spaceless())
    assert text.count("blah") == 3
    assert f"is{answer}." in text
    with pytest.raises(UserError, match="one question a prompt, got questions=2"):
        task.case(tokenizer(), 3, 2, np.random.default_rng(0))
    with pytest.raises(UserError, match="function echo has no usual lengths: give"):
        cases(llama(), task, tokenizer(), (), 2, 1, 0)


@pytest.mark.parametrize(
    ("task", "lengths", "prompts", "questions", "message"),
    [
        ("lookup", [4], 2, 5, "asks for 5 different names, and there are 4"),
        ("lookup", [len(NAMES) + 1], 2, 1, "lookup has 4,900 names, got length 4,901"),
        ("lookup", [4, 64], 1, 1, r"64 names are 1,\d+ tokens with the answer.*up to 4, of those"),
        ("lookup", [64], 1, 1, "give lengths up to fewer than that"),
        ("lookup", [], 1, 1, "lengths is empty"),
        ("lookup", [0], 1, 1, "whole numbers from 1 up, got 0"),
        ("lookup", [4], 0, 1, "prompts=0"),
        ("max", [4], 1, 2, "'max' asks one question a prompt, got questions=2"),
        ("passkey", [10], 1, 1, "at least .* tokens, got length 10"),
        ("passkey", [200], 1, 3, "one question a prompt"),
    ],
)
def test_what_cannot_be_asked_is_refused(task, lengths, prompts, questions, message):
    with pytest.raises(UserError, match=message):
        cases(llama(), TASKS[task], tokenizer(), lengths, prompts, questions, 0)


def test_an_unknown_task():
    with pytest.raises(
        UserError, match="unknown task 'poem': expected one of max, passkey, lookup"
    ):
        task_of("poem")
