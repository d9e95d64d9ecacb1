"""Ways to damage JSON values and bytes, and what must come of it."""

from __future__ import annotations

import copy
import math
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from sharpmax import UserError

VALUES = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        1.5,
        -0.0,
        1e-300,
        1e300,
        1e39,
        2**31,
        2**63,
        10**30,
        10**400,
    ),
    *(
        math.nan,
        math.inf,
        -math.inf,
        "",
        "1",
        "nan",
        "x",
        "\0",
        "<b>",
        "a" * 3000,
        "\N{PILE OF POO}",
    ),
    *([], {}, [[]], [None], [1], ["x"], [[1, 2], [3]], {"a": 1}, {"0": [0.5]}, [[[[[[1]]]]]]),
)
"""What a place in a JSON file may hold instead of what belongs there."""


def places(content: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a JSON value."""
    if isinstance(content, dict):
        items = list(content.items())
    elif isinstance(content, list):
        items = list(enumerate(content))
    else:
        return []
    found = [(content, key) for key, _ in items]
    for _, inner in items:
        found += places(inner, depth + 1)
    return found


def mutate(content: Any, rng: np.random.Generator) -> None:
    """Replace, delete, double or move some values of a JSON value, at any depth."""
    for _ in range(rng.integers(1, 4)):
        found = places(content)
        if not found:
            return
        # Few places near the root, many far from it: choose the depth first.
        if rng.random() < 0.5:
            found = [place for place in found if isinstance(place[0], dict)] or found
        container, key = found[rng.integers(len(found))]
        action = rng.random()
        if action < 0.6:
            container[key] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
        elif action < 0.8:
            del container[key]
        elif isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            other, its_key = found[rng.integers(len(found))]
            container[key] = copy.deepcopy(other[its_key])


def accept(action: Callable[[], Any]) -> None:
    """Run an action that may refuse, but not crash."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers that overflow while a chart is made
        with suppress(UserError):
            action()


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Change, cut, insert or repeat some bytes."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        at = int(rng.integers(len(data) or 1))
        match rng.integers(5):
            case 0:
                data[at : at + 1] = bytes([rng.integers(256)])
            case 1:
                data[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31, 2**32 - 1])))
            case 2:
                data[at : at + 8] = struct.pack("<Q", int(rng.integers(2**63)))
            case 3:
                del data[at : at + int(rng.integers(1, 40))]
            case _:
                data[at:at] = data[at : at + int(rng.integers(1, 40))]
    return bytes(data)
