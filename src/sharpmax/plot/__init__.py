"""Pictures of results. They read results and never compute."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from sharpmax._errors import UserError
from sharpmax.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (
    "certify",
    "evaluate",
    "figure1",
    "figure2",
    "figure3",
    "figure5",
    "figure6",
    "figure7",
    "figure8",
    "leaderboard",
    "policies",
    "scan",
    "table1",
    "unknowns",
)
"""Kinds of results that have a picture; each is drawn by the module of its name."""


def draw(result: Result) -> Figure:
    """The picture of a result."""
    if result.kind not in KINDS:
        raise UserError(
            f"no picture for results of kind {result.kind!r}: expected {', '.join(KINDS)}"
        )
    function: Callable[[Result], Figure] = import_module(f"sharpmax.plot.{result.kind}").draw
    return function(result)
