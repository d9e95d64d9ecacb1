"""Every code block of the documentation runs, and the numbers beside it are what it prints."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sharpmax import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
PROMISE = re.compile(r"^print\(.*#\s*(-?\d+(?:\.\d+)?)", re.M)


SLOW_PAGES = ("certify", "diagnose", "evaluate", "lm_eval", "models")
"""Pages whose blocks load or measure a real model."""


def place(page: Path) -> str:
    """What a page is called in the names of tests: where it is, since several have one name."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(page.read_text("utf-8")) if name == language]


def check_python(source: str, names: dict[str, object]) -> None:
    """Run a block; where every print has a number beside it, the output must be those numbers."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, "docs", "exec"), names)
    promised, printed = PROMISE.findall(source), out.getvalue().split()
    assert len(promised) == len(printed), (
        "every print stands at the margin with its number beside it"
    )
    for promise, value in zip(promised, printed, strict=True):
        digits = len(promise.partition(".")[2])
        assert abs(float(value) - float(promise)) <= 0.5001 * 10**-digits, (promise, value)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.stem in SLOW_PAGES), id=place(page))
        for page in PAGES
    ],
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    # As if at the root of a clone, but what is written goes elsewhere.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "results").mkdir()
    for result in (ROOT / "results").glob("*.*"):
        (tmp_path / "results" / result.name).symlink_to(result)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for source in blocks(page, "python"):
        check_python(source, names)


def test_a_wrong_number_is_found():
    with pytest.raises(AssertionError):
        check_python("print(1 + 1)  # 3", {})


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=place)
def test_commands_run(page, tmp_path):
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    for line in lines:
        if not line.startswith("sharpmax "):
            assert line.startswith("make "), line
            continue
        command = [
            str(Path(sys.executable).with_name("sharpmax")),
            *shlex.split(line, comments=True)[1:],
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_commands_that_take_long_exist(page, capsys):
    """Blocks marked `sh` are not run; their commands and options must still be there."""
    for line in (line for block in blocks(page, "sh") for line in block.splitlines()):
        line = re.sub(r"^torchrun (--\S+ \S+ )+-m sharpmax", "sharpmax", line)
        assert line.startswith("sharpmax "), line
        assert cli.main([*shlex.split(line, comments=True)[1:], "--help"]) == 0, line
        assert "Usage" in capsys.readouterr().out, line


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=place)
def test_links_and_make_targets_exist(page):
    text = page.read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", text, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", target.read_text("utf-8"), re.M)
            slugs = [
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
            ]
            assert anchor in slugs, link


def test_the_example_is_eight_lines():
    first = blocks(ROOT / "README.md", "python")[0]
    assert len([line for line in first.splitlines() if line.strip()]) == 8
