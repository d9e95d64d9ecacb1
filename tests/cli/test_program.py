"""Help texts: every command in one line, grouped, and readable on 80 columns."""

from __future__ import annotations

import inspect
import re
from itertools import pairwise

import pytest
import typer

import sharpmax
from sharpmax.cli.program import COMMANDS, program

NAMES = [name.replace("_", "-") for names in COMMANDS.values() for name in names]
CLRS = ["clrs generate", "clrs train", "clrs evaluate"]
GRID = ["grid evaluate", "grid tune"]
MODELS = ["models download"]
ROOT = typer.main.get_command(program)


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


def test_commands_are_grouped_and_take_one_line_each(succeed):
    text = succeed("--help").out
    assert succeed().out.strip() == succeed("-h").out.strip() == text.strip()
    headings = re.findall(r"^╭─ (\w+) ─", text, re.M)
    assert headings == ["Options", *COMMANDS]
    lines = re.findall(r"^│ (\S*) +(\S.*?) +│$", text, re.M)
    commands = [(name, summary) for name, summary in lines if not name.startswith("--")]
    assert [name for name, _ in commands] == NAMES  # a second line would have no name
    for _, summary in commands:
        assert summary.endswith(".")


@pytest.mark.parametrize("command", [*NAMES, *CLRS, *GRID, *MODELS])
def test_help_of_a_command(command, succeed):
    text = succeed(*command.split(), "--help").out
    assert "<bool>" not in text
    assert "…" not in text  # nothing is cut off
    assert "`" not in text  # code is marked by style
    assert all(len(line) <= 80 for line in text.splitlines())
    # Paragraphs are filled: a line that could have held the next word is the last of its paragraph.
    for line, following in pairwise(text.split("╭")[0].splitlines()[3:]):
        if line.strip() and following.strip() and not following.strip().startswith("•"):
            assert len(line.rstrip()) + len(following.split()[0]) >= 79, line


@pytest.mark.parametrize("command", [*NAMES, *CLRS, *GRID, *MODELS])
def test_every_option_is_explained(command):
    found = ROOT
    for name in command.split():
        found = found.commands[name]
    for parameter in found.params:
        assert parameter.help, parameter.name
        assert parameter.help.rstrip().endswith((".", ")")), parameter.help
        assert getattr(parameter, "is_flag", False) or parameter.metavar, parameter.name


def test_a_command_is_named_after_its_module():
    for names in COMMANDS.values():
        for name in names:
            command = ROOT.commands[name.replace("_", "-")]
            if command.callback is not None and name not in ("clrs", "grid"):
                module = inspect.unwrap(command.callback).__module__
                assert module == f"sharpmax.cli.commands.{name}"


def test_version(succeed):
    assert succeed("--version").out == f"sharpmax {sharpmax.__version__}\n"
