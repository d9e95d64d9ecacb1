"""Questions of one's own: any answers, marked by what the model writes; mistakes name their line."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import sharpmax.hf as shf
from hf.words import reader, word_tokenizer
from sharpmax import PAPER, Constant
from sharpmax._errors import UserError
from sharpmax.hf.evaluate.resolve import resolve_task
from sharpmax.hf.evaluate.scoring import score_answers, score_reference, write_answer
from sharpmax.hf.evaluate.tasks import make_prompts


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    return path


def capitals(number=7, **fields):
    return [
        {"prompt": f"Number {at}. The capital of France is", "answer": ["Paris", "Lutetia"]}
        | fields
        for at in range(number)
    ]


def prompts_of(task, model=None, **options):
    task = resolve_task(task)
    options = {
        "lengths": task.lengths,
        "prompts": task.prompts,
        "questions": 1,
        "seed": 0,
    } | options
    return make_prompts(model or reader(), task, word_tokenizer(), **options)


def test_a_question_is_read_as_it_is_and_its_first_answer_is_the_reference():
    ((prompt,),) = prompts_of(capitals(1)).values()
    tokens = word_tokenizer()
    text = tokens.decode([*prompt.context, *prompt.questions[0]])
    assert text == "Number 0. The capital of France is"
    assert tokens.decode(prompt.answers[0]) == " Paris"
    assert prompt.marking.accepted == ("Paris", "Lutetia")
    assert (prompt.marking.match, prompt.marking.max_tokens, prompt.parts) == ("exact", 64, 1)


def test_a_file_and_a_list_are_the_same_questions_in_their_order(tmp_path):
    rows = capitals(4)
    rows[2]["prompt"] = "A line separator \u2028 in a text, and an umlaut: Öl is"
    path = write(tmp_path / "mine.jsonl", rows)
    from_file, from_list = prompts_of(path), prompts_of(rows)
    assert from_file == from_list == prompts_of(str(path))
    (length,) = from_file
    assert length == max(len(row["prompt"]) for row in rows)
    assert resolve_task(path).name == "mine.jsonl"
    assert resolve_task(path).unit == "characters"
    assert from_file[length][:2] == prompts_of(rows, prompts=2)[length]


def test_lengths_group_questions():
    rows = [*capitals(6, length=10), *capitals(8, length=20)]
    found = prompts_of(rows)
    assert {length: len(prompts) for length, prompts in found.items()} == {10: 6, 20: 8}
    with pytest.raises(UserError, match="no questions of length 15: it has those of 10, 20"):
        prompts_of(rows, lengths=[15])
    with pytest.raises(UserError, match="question 2 has no length and others have one"):
        resolve_task([{**rows[0]}, *capitals(1)])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", r"\[1\] is not an object with the fields prompt and answer"),
        ('{"answer": "b"}', "prompt is None; give a text"),
        ('{"prompt": "a", "answer": 3}', "answer is 3; give a string, or a list of strings"),
        ('{"prompt": "a", "answer": []}', r"answer is \[\]"),
        ('{"prompt": "a", "answer": ["b", " "]}', "answer has ' '; give a string that is not"),
        ('{"prompt": "a", "answer": "b", "match": "fuzzy"}', "match is 'fuzzy'; expected exact or"),
        ('{"prompt": "a", "answer": "b\\nc"}', "an answer has several lines"),
        ('{"prompt": "a", "answer": "b", "length": 2.5}', "length is 2.5; give a whole number"),
        ('{"prompt": "a", "answer": "b", "max_tokens": true}', "max_tokens is True"),
        ('{"prompt": "a", "answers": "b"}', "unknown field 'answers'; expected prompt, answer, "),
    ],
)
def test_a_mistake_names_the_file_and_the_line(tmp_path, line, message):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "answer": "b", "id": 7}\n\n' + line, "utf-8")
    with pytest.raises(UserError, match=rf"mine\.jsonl, line 3: {message}"):
        resolve_task(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"gone\.jsonl does not exist"):
        resolve_task("gone.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match=r"empty\.jsonl has no questions"):
        resolve_task(tmp_path / "empty.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"cannot read .* as text in UTF-8"):
        resolve_task(tmp_path / "bytes.jsonl")
    with pytest.raises(UserError, match="question 1: 'a' is not an object"):
        resolve_task(["a"])


def test_the_model_writes_and_is_marked():
    """What it writes by itself, as transformers generates it, is the accepted answer or is not."""
    model, tokens = reader(), word_tokenizer()
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    text = "The sun is"
    ids = tokens(text, return_tensors="pt")["input_ids"]
    written = tokens.decode(
        model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    )
    part = written.strip()[1:].strip()
    for match, answer, right in (
        ("contains", part, True),
        ("contains", part + " and more", False),
        ("exact", "something else", False),
    ):
        row = {"prompt": text, "answer": answer, "match": match, "max_tokens": 5}
        ((prompt,),) = prompts_of([row], model).values()
        scores = score_answers(model, tokens, prompt)
        assert scores.right.tolist() == [right]
        reference = score_reference(model, tokens, prompt)
        np.testing.assert_allclose(scores.log_probability, reference.log_probability)
        question = (*prompt.context, *prompt.questions[0])
        assert written.startswith(write_answer(model, tokens, question, prompt.marking))


def test_writing_ends_at_the_end_of_the_sequence_and_after_max_tokens():
    model, tokens = reader(), word_tokenizer()
    ((prompt,),) = prompts_of(capitals(1, match="contains", max_tokens=3), model).values()
    question = (*prompt.context, *prompt.questions[0])
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    ids = torch.tensor([question])
    written = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)[0, -3:]
    assert write_answer(model, tokens, question, prompt.marking) == tokens.decode(written)
    model.generation_config.eos_token_id = list(range(model.config.vocab_size))
    assert write_answer(model, tokens, question, prompt.marking) == ""


def test_lengths_may_have_different_numbers_of_questions():
    rows = [*capitals(6, length=10), *capitals(9, length=20)]
    model = reader()
    found = shf.evaluate(model, word_tokenizer(), rows, {"same": Constant(1.0), "paper": PAPER})
    assert found.right.shape == found.log_probability.shape == (2, 3, 9, 1)
    assert (found.right[0, :, 6:] == -1).all()
    assert (found.right[0, :, :6] >= 0).all()
    assert (found.right[1] >= 0).all()
    short = found.log_probability[0, :, :6]
    assert found.row(10, "paper")["log_probability"] == pytest.approx(short[2].mean())
    change = found.row(10, "same")["log_probability_compared"]["difference"]
    assert change == pytest.approx(0, abs=1e-5)
    assert found.config["task"] == "questions"


def test_too_few_questions_of_a_length_are_refused():
    rows = [*capitals(6, length=10), *capitals(5, length=20)]
    with pytest.raises(UserError, match="questions has 5 questions of length 20"):
        shf.evaluate(reader(), word_tokenizer(), rows)
    with pytest.raises(UserError, match=r"makes? a prompt of .* tokens with its answer"):
        shf.evaluate(reader(context=64), word_tokenizer(), capitals(6))


def test_tune_keeps_questions_to_validate_and_to_check():
    task = resolve_task(capitals(10))
    (length,) = task.lengths
    tokens = word_tokenizer()
    drawn = {task.make_prompt(tokens, length, 1, np.random.default_rng(seed)) for seed in range(60)}
    parts = [each.make_list(tokens, length, 99, 0) for each in task.held_back]
    everything = task.make_list(tokens, length, 99, 0)
    assert [len(drawn), *map(len, parts)] == [6, 2, 2]
    assert drawn | {*parts[0], *parts[1]} == set(everything)
    with pytest.raises(UserError, match="fewer than 5 questions"):
        shf.tune(reader(), tokens, capitals(4), from_tokens=4)


def test_diagnose_finds_answers_that_are_in_the_text_once():
    rows = [
        {"prompt": f"{'The sky is blue. ' * at}Bo is {name}. Who is Bo? Bo is", "answer": name,
         "length": at, "max_tokens": 2}
        for at in (1, 3)
        for name in ("tall", "small", "old")
    ]  # fmt: skip
    found = shf.diagnose(reader(), word_tokenizer(), rows)
    assert found.weight.shape[:3] == (2, 3, 1)
    with pytest.raises(UserError, match="'questions' does not say where in the text its answers"):
        shf.diagnose(reader(), word_tokenizer(), [row | {"answer": "Bo"} for row in rows])
