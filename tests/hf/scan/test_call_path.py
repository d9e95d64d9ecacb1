"""How many of our files a reader must open to follow one call of `scan`."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sharpmax
import sharpmax.hf as shf
from hf.small import llama, tokenizer

SOURCE = str(Path(sharpmax.__file__).parent)


def trace_files(function: Any, *arguments: Any) -> list[str]:
    """Return the file of each of our functions that a call enters, in order."""
    files: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            files.append(frame.f_code.co_filename.removeprefix(SOURCE))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return files


@pytest.fixture(scope="module")
def files() -> list[str]:
    """The files of a scan of two layers at two lengths, once everything is compiled."""
    arguments = llama(layers=2), tokenizer(), [4, 8]
    shf.scan(*arguments)
    return trace_files(shf.scan, *arguments)


def test_a_scan_runs_through_few_files(files):
    assert len(set(files)) <= 28, sorted(set(files))


def test_a_scan_rarely_changes_files(files):
    changes = sum(first != second for first, second in pairwise(files))
    assert changes <= 340
