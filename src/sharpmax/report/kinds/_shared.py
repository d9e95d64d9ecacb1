"""Axes, lines and facts that several kinds of results share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sharpmax.report.blocks import Axis, Cell, Line
from sharpmax.report.numbers import amount, share
from sharpmax.report.palette import Look
from sharpmax.results.schemas import ModelInfo


def model_facts(info: ModelInfo) -> list[str]:
    """Return what is known of the model that was measured."""
    return [
        info.architecture,
        f"{amount(info.parameters)} parameters",
        f"{info.dtype} on {info.device}",
    ]


PAPER = "Polynomial(coefficients=(-0.037, 0.481, -2.3, 4.917, -1.791), threshold=0.5)"
"""The paper's policy as results write it."""


def policy_words(policy: str) -> str:
    """Return what a policy in a result is called."""
    return "the paper's polynomial" if policy == PAPER else policy


def size_axis(sizes: Sequence[int]) -> Axis:
    """Return the axis of the sizes of sets."""
    return Axis("items in the set", scale="log", noun="items", ticks=sizes)


def accuracy_axis() -> Axis:
    """Return the axis of accuracies in percent."""
    return Axis("accuracy, %", digits=1, unit="%", low=0, high=104)


def percents(values: Sequence[float | None]) -> list[float | None]:
    """Return shares in percent."""
    return [None if value is None else 100 * value for value in values]


def share_line(
    look: Look, x: Sequence[int], mean: Sequence[float], std: Sequence[float] | None, **options: Any
) -> Line:
    """Return a line of shares in percent, with the standard deviation as a band."""
    if std is not None:
        pairs = list(zip(mean, std, strict=True))
        options["low"] = [100 * (value - spread) for value, spread in pairs]
        options["high"] = [100 * (value + spread) for value, spread in pairs]
    return Line.of(look, x, percents(mean), **options)


def share_cell(mean: Sequence[float], std: Sequence[float] | None, index: int) -> Cell:
    """Return the cell of one share: mean ± standard deviation in percent."""
    return Cell(mean[index], share(mean[index], None if std is None else std[index]))


def middle_and_last(sizes: Sequence[int]) -> list[int]:
    """Return the indices of two telling sizes: 1,024 or the middle one, and the last."""
    middle = sizes.index(1024) if 1024 in sizes else len(sizes) // 2
    return list(dict.fromkeys([middle, len(sizes) - 1]))
