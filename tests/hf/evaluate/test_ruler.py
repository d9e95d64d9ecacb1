"""RULER: samples are the harness's own, needles are where the answers are, scores are RULER's."""

from __future__ import annotations

import io
import json
import random
from contextlib import redirect_stderr, redirect_stdout
from hashlib import sha256

import numpy as np
import pytest

import sharpmax.hf as shf
from hf.words import reader, word_tokenizer
from sharpmax import PAPER
from sharpmax._errors import MissingExtraError, UserError
from sharpmax.hf.evaluate import ruler
from sharpmax.hf.evaluate.resolve import resolve_task
from sharpmax.hf.evaluate.ruler import RULER_TASKS, make_samples
from sharpmax.hf.evaluate.tasks import make_prompts

pytest.importorskip("wonderwords")
pytest.importorskip("lm_eval")

NEEDLES_IN_ESSAYS = (
    "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"
)  # fmt: skip
LENGTH = 1800


@pytest.fixture(autouse=True)
def essays(monkeypatch, tmp_path):
    """Essays made here, and sentences that end at a full stop: neither package is needed."""
    for number in range(3):
        words = " ".join(f"Sentence {at} of essay {number} says little." for at in range(400))
        (tmp_path / f"essay{number}.txt").write_text(words)
    samples = ruler._modules("a test").samples
    monkeypatch.setattr(ruler, "find_package_data", lambda *arguments: tmp_path)
    monkeypatch.setattr(ruler, "_provide_sentences", lambda: None)
    monkeypatch.setattr(samples, "cached_sent_tokenize", lambda text: text.split(". "))
    ruler._haystack.cache_clear()
    yield
    ruler._haystack.cache_clear()


def harness_samples(name, count):
    """What the harness makes of a task, with the functions that its task files name."""
    from lm_eval.tasks.ruler import cwe_utils, fwe_utils, niah_utils, vt_utils

    tokens = word_tokenizer()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        if name == "ruler_vt":
            return vt_utils.get_dataset(tokens, seq=LENGTH)[:count]
        if name == "ruler_cwe":
            return cwe_utils.get_dataset(tokens, seq=LENGTH)[:count]
        if name == "ruler_fwe":
            return fwe_utils.get_dataset(tokens, max_seq_length=LENGTH)[:count]
        return list(getattr(niah_utils, name)(tokenizer="x", max_seq_lengths=[LENGTH])["test"])[
            :count
        ]


@pytest.mark.parametrize("name", sorted(RULER_TASKS))
def test_samples_are_those_of_the_harness(name, monkeypatch):
    from lm_eval.tasks.ruler import cwe_utils, niah_utils

    monkeypatch.setattr(niah_utils, "get_tokenizer", lambda name: word_tokenizer())
    haystack = ruler._modules("a test").samples.get_haystack
    monkeypatch.setattr(
        niah_utils,
        "get_haystack",
        lambda type_haystack: (
            ruler._haystack("essay") if type_haystack == "essay" else haystack(type_haystack)
        ),
    )
    random.seed(5)
    np.random.seed(1239)  # noqa: NPY002 - what the harness uses
    # As it is when the harness has just imported the module.
    cwe_utils.RNG.seed(42)
    cwe_utils.RNG.shuffle(list(cwe_utils.WORDS))
    expected = harness_samples(name, 3)
    found = make_samples(name, word_tokenizer(), LENGTH, 3, seed=5)
    assert hashed(found) == hashed(expected)
    assert hashed(found) != hashed(make_samples(name, word_tokenizer(), LENGTH, 3, seed=6))


def hashed(samples):
    return sha256(json.dumps(samples, sort_keys=True).encode()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["niah_single_1", "ruler_cwe"])
def test_prompts_are_those_that_the_harness_gives_a_model(name, tmp_path):
    """From the harness's own task, with its default seeds: the text, and how much may be written."""
    from lm_eval.tasks import TaskManager

    word_tokenizer().save_pretrained(tmp_path)
    manager = TaskManager(metadata={"tokenizer": str(tmp_path), "max_seq_lengths": [LENGTH]})
    random.seed(0)
    np.random.seed(1234)  # noqa: NPY002
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        task = manager.load([name])["tasks"][name]
        task.build_all_requests(limit=2, rank=0, world_size=1)
    prompts = RULER_TASKS[name].make_list(word_tokenizer(), LENGTH, 2, 0)
    for request, prompt in zip(task.instances, prompts, strict=True):
        text, options = request.arguments
        tokens = word_tokenizer()(text)["input_ids"]
        assert [*prompt.context, *prompt.questions[0]] == tokens
        assert prompt.marking.max_tokens == options["max_gen_toks"]
        assert options["until"] == []


def test_random_numbers_of_others_are_left_alone():
    from lm_eval.tasks.ruler import cwe_utils

    random.seed(3), cwe_utils.RNG.seed(3)
    np.random.seed(3)  # noqa: NPY002
    states = random.getstate(), cwe_utils.RNG.getstate()
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    make_samples("ruler_cwe", word_tokenizer(), LENGTH, 1)
    make_samples("ruler_vt", word_tokenizer(), LENGTH, 1)
    assert (random.getstate(), cwe_utils.RNG.getstate()) == states
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("name", sorted(RULER_TASKS))
def test_needles_are_the_answers(name):
    tokens = word_tokenizer()
    for prompt in RULER_TASKS[name].make_list(tokens, LENGTH, 2, 0):
        assert prompt.tokens <= LENGTH + 50  # the harness counts frequent words without the answer
        assert prompt.parts == len(prompt.marking.accepted)
        if name in ("ruler_cwe", "ruler_fwe"):
            assert prompt.needles == ()
            continue
        places = [*prompt.needles, *prompt.copies[0]]
        found = [tokens.decode(prompt.context[start:stop]).strip() for start, stop in places]
        assert set(found) == set(prompt.marking.accepted)
        assert found[0] == prompt.marking.accepted[0]
        assert len(places) == (9 if name == "ruler_vt" else len(prompt.marking.accepted))


@pytest.mark.parametrize("name", sorted(RULER_TASKS))
def test_a_length_into_which_nothing_fits_is_refused(name):
    with pytest.raises(UserError, match=f"task '{name}' has no text of 140 tokens"):
        make_samples(name, word_tokenizer(), 140, 2)
    with pytest.raises(UserError, match="has no text of 40 tokens"):
        make_samples(name, word_tokenizer(), 40, 2)


def test_a_missing_package_is_named(monkeypatch):
    ruler._modules.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setitem(__import__("sys").modules, "lm_eval.tasks.ruler", None)
            with pytest.raises(MissingExtraError, match=r"pip install 'sharpmax\[ruler\]'"):
                ruler._modules("task 'niah_single_1'")
    finally:
        ruler._modules.cache_clear()


def test_evaluate_scores_the_share_of_the_answers_that_are_written(monkeypatch):
    answers = []

    def write(model, tokenizer, question, marking, cache):
        answers.append(marking.accepted)
        return f"They are {marking.accepted[0]} and {marking.accepted[2]}."

    from sharpmax.hf.evaluate import scoring

    monkeypatch.setattr(scoring, "write_answer", write)
    found = shf.evaluate(
        reader(), word_tokenizer(), "niah_multivalue", {"paper": PAPER}, lengths=[900], prompts=6
    )
    assert found.right.shape == (1, 2, 6, 4)
    assert found.log_probability.shape == (1, 2, 6, 1)
    assert (found.right[0] == [1, 0, 1, 0]).all()
    assert found.row(900, "plain")["accuracy"]["mean"] == 0.5
    assert len(answers) == 12


def test_diagnose_refuses_tasks_without_needles_by_name():
    options = {"lengths": [900, 1000], "prompts": 1}
    with pytest.raises(UserError, match="task 'ruler_cwe' does not say where in the text"):
        shf.diagnose(reader(), word_tokenizer(), "ruler_cwe", lengths=[2000, 2200], prompts=1)
    found = shf.diagnose(reader(), word_tokenizer(), "niah_multikey_2", **options)
    assert found.weight.shape[:3] == (2, 1, 1)


def test_tune_learns_from_the_reference_answer():
    task = resolve_task("niah_multikey_2")
    prompts = [
        task.make_prompt(word_tokenizer(), 900, 1, np.random.default_rng(seed))
        for seed in (0, 0, 1)
    ]
    assert prompts[0] == prompts[1] != prompts[2]
    made = make_prompts(reader(), task, word_tokenizer(), [900], 4, 1, 0)[900]
    assert len(set(made)) == 4
    assert make_prompts(reader(), task, word_tokenizer(), [900], 2, 1, 0)[900] == made[:2]
