"""Impossible options: every command line is refused with one line and exit code 2."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from sharpmax.cli import main

COMMANDS = {
    "scan": ("--prompt", "--text", "--lengths", "--layers", "--heads", "--policy", "--seed"),
    "diagnose": ("--task", "--policy", "--lengths", "--prompts", "--questions", "--seed"),
    "certify": ("--scan",),
    "tune": ("--task", "--guard", "--guard-weight", "--max-text-cost", "--from-tokens",
             "--max-heads", "--steps", "--learning-rate", "--check-prompts", "--seed"),
    "evaluate": ("--task", "--policy", "--lengths", "--prompts", "--questions", "--seed"),
    "calibrate": ("--task", "--short", "--long", "--prompts", "--questions", "--choose", "--seed"),
    "export": ("--calibration", "--at-length", "--task", "--lengths"),
    "report": (),
    "reproduce": ("--processes", "--model", "--only", "--threads"),
    "leaderboard": ("--track", "--task", "--method", "--ray"),
    "clrs generate": ("--split", "--algorithm", "--largest", "--samples", "--seeds"),
}  # fmt: skip
VALUES = (
    *("", "0", "1", "-1", "1-9999999999", "9999999999", "9" * 400, "1,,2", "7-4", "nan", "inf"),
    *("1e400", "0.5", "-", "--", "\0", "none.json", ".", "/", "/dev/null", "constant:1e39"),
    *("constant:nan", "paper@0-99999999", "tuned@1", "log:0", "x" * 5000, "\N{PILE OF POO}"),
)
WORDS = st.sampled_from(VALUES) | st.text(max_size=12)


def run_command(words: list[str]) -> None:
    """Run a command on a model that is not there: it may only refuse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(words)
    assert code == 2, words


def check_options(folder: Path, command: str, options: list[tuple[str, str]]) -> None:
    words = command.split()
    words += [str(folder / "none")] if command not in ("reproduce", "leaderboard") else []
    words += ["no-such-thing"] if command == "reproduce" else []
    words += ["--task", "no-such-task"] if command == "leaderboard" else []
    words += ["--algorithm", "no-such"] if command.startswith("clrs") else []
    for name, value in options:
        words += [name, value]
    run_command([*words] if command.startswith("clrs") else [*words, "--out", str(folder / "out")])


@st.composite
def options_of(draw: Any) -> tuple[str, list[tuple[str, str]]]:
    command = draw(st.sampled_from(sorted(COMMANDS)))
    names = COMMANDS[command] or ("--out",)
    pairs = st.tuples(st.sampled_from(names), WORDS)
    return command, draw(st.lists(pairs, min_size=1, max_size=3))


@given(options_of())
@settings(max_examples=30)
def test_options_some(tmp_path_factory, drawn):
    check_options(tmp_path_factory.getbasetemp(), *drawn)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_options_many(tmp_path_factory, part):
    @seed(part)
    @given(options_of())
    @settings(max_examples=500)
    def check(drawn):
        check_options(tmp_path_factory.getbasetemp() / str(part), *drawn)

    check()


@pytest.mark.slow
def test_words_many():
    """Any words at all, also those that are no options."""

    @given(
        st.lists(
            st.sampled_from([*COMMANDS, "doctor", "--", "-o", "--out", "--help"]) | WORDS,
            max_size=4,
        )
    )
    @settings(max_examples=500)
    def check(words):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            words = [word for word in words if word not in ("app", "demo", "doctor")]
            if words[:1] not in (["leaderboard"], ["certify"], ["evaluate"]):
                assert main([*words, "--no-such-option"]) in (0, 2)

    check()
