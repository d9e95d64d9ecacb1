"""Run commands in this process, and small models in folders to run them on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sharpmax.cli import main


class Finished(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys) -> Callable[..., Finished]:
    """Run a command with these words."""

    def run_command(*words: object) -> Finished:
        capsys.readouterr()
        code = main([*map(str, words)])
        return Finished(code, *capsys.readouterr())

    return run_command


@pytest.fixture
def succeed(run) -> Callable[..., Finished]:
    """Run a command that must succeed."""

    def run_command(*words: object) -> Finished:
        finished = run(*words)
        assert finished.code == 0, finished.err
        return finished

    return run_command


@pytest.fixture
def fail(run) -> Callable[..., str]:
    """Run a command that must fail, and return the one line that it prints on standard error.

    With `last_line_only`, libraries may have printed lines before it.
    """

    def run_command(*words: object, last_line_only: bool = False) -> str:
        finished = run(*words)
        assert (finished.code, finished.out) == (2, "")
        *earlier, error = finished.err.splitlines(keepends=True)
        assert error.startswith("sharpmax: ")
        assert last_line_only or not earlier
        return error

    return run_command


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory) -> Path:
    """A small language model in a folder; do not change it."""
    from hf.small import llama, tokenizer

    folder = tmp_path_factory.mktemp("model") / "tiny"
    llama().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def model_folder(saved_model, tmp_path) -> Path:
    """A copy of the small model."""
    return shutil.copytree(saved_model, tmp_path / "model")
