"""Every exported name is documented: one clear line, every argument, and what comes back.

Read from the source with griffe, as the documentation does, so that nothing must be imported.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import pytest

SOURCE = Path(__file__).parents[1] / "src"

PENDING: tuple[str, ...] = ()
"""Packages, or single names as in the tests' parameters, that are still to be documented."""

NOT_VERBS = frozenset(
    [
        "A",
        "An",
        "All",
        "Any",
        "As",
        "At",
        "Both",
        "By",
        "Each",
        "Every",
        "For",
        "From",
        "How",
        "If",
        "In",
        "Is",
        "It",
        "Its",
        "No",
        "Not",
        "Of",
        "On",
        "One",
        "Only",
        "Same",
        "That",
        "The",
        "Their",
        "These",
        "This",
        "Those",
        "To",
        "True",
        "Two",
        "What",
        "When",
        "Where",
        "Whether",
        "Which",
        "Who",
        "Whose",
        "With",
    ]
)
FIT_FOR_CLASSES = frozenset(("A", "An", "Each", "Every", "One", "The"))
VERBS = frozenset(
    [
        "Address",
        "Assess",
        "Bias",
        "Bring",
        "Compress",
        "Cross",
        "Discuss",
        "Embed",
        "Express",
        "Feed",
        "Focus",
        "Need",
        "Pass",
        "Press",
        "Proceed",
        "Process",
        "Seed",
        "Spread",
        "String",
    ]
)
"""Verbs that look like a plural, a participle or a gerund."""


@cache
def package() -> griffe.Module:
    return griffe.load("sharpmax", search_paths=[SOURCE], resolve_aliases=True)


def public_modules(module: griffe.Module, path: str = "") -> Iterator[tuple[str, griffe.Module]]:
    """The module and those inside it that have an `__all__`, but for private ones."""
    if module.exports is not None:
        yield path, module
    for name, member in module.modules.items():
        if not name.startswith("_") and not member.is_alias:
            yield from public_modules(member, f"{path}.{name}".lstrip("."))


@cache
def documented() -> dict[str, Any]:
    """Exported functions and classes, and the methods that those classes document, each once."""
    names: dict[str, Any] = {}
    for path, module in public_modules(package()):
        for name in map(str, module.exports):
            member = module[name]
            target = member.final_target if member.is_alias else member
            if (target.is_function or target.is_class) and target not in names.values():
                names[f"{path}.{name}".lstrip(".")] = target
    for path, target in list(names.items()):
        for name, member in target.members.items() if target.is_class else ():
            shown = not name.startswith("_") or name == "__call__"
            # What a class overrides without a docstring, it inherits.
            if shown and member.is_function and member.docstring:
                names[f"{path}.{name}"] = member
    return names


def is_pending(name: str) -> bool:
    return any(name == entry or name.startswith(f"{entry}.") for entry in PENDING)


each = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(is_pending(name), reason="not yet documented"))
        for name in documented()
    ],
)


def text(target: Any) -> str:
    return inspect.cleandoc(target.docstring.value) if target.docstring else ""


def sections(target: Any) -> dict[str, Any]:
    parsed = target.docstring.parse("google", warnings=False) if target.docstring else ()
    return {section.kind.value: section.value for section in parsed}


def arguments(target: griffe.Function | griffe.Class) -> list[str]:
    """What a user passes; to a class, what its constructor takes."""
    names = [parameter.name.lstrip("*") for parameter in target.parameters]
    if target.is_class and not names:
        names = [name for name, member in target.members.items() if is_field(member)]
    skipped = ("self", "cls", "model_config")  # the last one is pydantic's
    return [name for name in names if name not in skipped and not name.startswith("_")]


def is_field(member: Any) -> bool:
    """Of a named tuple or a pydantic model, whose constructor is not in the source."""
    return member.is_attribute and "instance-attribute" in member.labels


def documented_arguments(target: Any) -> list[str]:
    found = sections(target)
    listed = [*found.get("parameters", ()), *found.get("attributes", ())]
    return [argument.name.lstrip("*") for argument in listed]


@each
def test_the_first_line_is_one_sentence(name):
    first, _, rest = text(documented()[name]).partition("\n")
    assert first, "no docstring"
    assert len(first) <= 100
    assert first.endswith("."), first
    assert not rest or rest.startswith("\n"), "one line, then an empty one"


@each
def test_the_first_word_is_a_verb(name):
    """As far as its form tells: no article, third person or participle. Classes may be nouns."""
    word = re.match(r"\W*(\w*)", text(documented()[name]))[1]
    assert word[:1].isupper(), word
    if documented()[name].is_class:
        assert word not in NOT_VERBS - FIT_FOR_CLASSES
    else:
        assert word not in NOT_VERBS
        assert word in VERBS or not word.endswith(("s", "ed", "ing")), word


@each
def test_every_argument_is_documented(name):
    target = documented()[name]
    listed = documented_arguments(target)
    if target.is_class:
        init = target.members.get("__init__")
        listed = listed or (documented_arguments(init) if init else [])
        # A field may also have a string of its own below it.
        missing = [
            argument
            for argument in arguments(target)
            if argument not in listed
            and not (argument in target.members and target.members[argument].docstring)
        ]
        assert not missing
        assert set(listed) <= set(arguments(target)), "no such argument"
    else:
        assert listed == arguments(target)


@each
def test_what_is_returned_is_documented(name):
    target = documented()[name]
    if target.is_function:
        returns = str(target.returns) not in ("None", "NoReturn")
        has_section = bool({"returns", "yields"} & sections(target).keys())
        # A first line "Return the ..." says it already.
        assert returns == (has_section or text(target).startswith("Return "))


def test_a_missing_argument_is_found():
    with griffe.temporary_visited_module(
        '''
        def scale(rows, *, factor=1.0) -> float:
            """Scale rows.

            Args:
                rows: the rows.
            """
        '''
    ) as module:
        assert arguments(module["scale"]) == ["rows", "factor"]
        assert documented_arguments(module["scale"]) == ["rows"]
        assert "returns" not in sections(module["scale"])
