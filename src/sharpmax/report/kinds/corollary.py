"""The corollary of Theorem 2.2: from how many items on the answer cannot be that of the highest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sharpmax.report.blocks import Axis, Cell, Chart, Column, Content, Line, Rule, Table, Verdict
from sharpmax.report.kinds._shared import size_axis
from sharpmax.report.numbers import ABSENT, plural, share
from sharpmax.results import Result, schemas

CHANCE = 0.1
"""Share of right answers of a guess among ten classes."""


def describe(result: Result) -> Content:
    heads = schemas.Corollary.of(result)
    return Content(
        what="corollary: dispersion induces reasoning failures",
        title="From some size on, the answer cannot depend on the highest item",
        facts=[
            plural(len(heads.accuracy), "trained head"),
            f"up to {heads.sizes[-1]:,} items",
            f"{plural(heads.sets, 'random set')} per size and head",
        ],
        sentences=[_measured(heads), _never_follows(heads), *_certain(heads)],
        verdict=Verdict(
            "neutral",
            "More precision moves this limit, it does not remove it. Sharpening with the number of "
            "items does, as long as the highest item still has the largest logit.",
            command="sharpmax reproduce policies",
        ),
        blocks=[
            _answers(heads),
            _changes(heads),
            _size_table(heads),
            _type_table(heads, result.seeds),
        ],
        picture=[_answers(heads), _changes(heads)],
    )


def _mean(rows: Sequence[Sequence[float]], index: int) -> float:
    return float(np.mean([row[index] for row in rows]))


def _measured(heads: schemas.Corollary) -> str:
    return (
        f"The heads name the class of the highest of {heads.sizes[0]:,} items in "
        f"{share(_mean(heads.accuracy, 0))} % of sets, and of {heads.sizes[-1]:,} items in "
        f"{share(_mean(heads.accuracy, -1))} %; a guess is right in {share(CHANCE)} %."
    )


def follows_until(heads: schemas.Corollary) -> int | None:
    """Return the largest size at which any head still follows the class of the highest item."""
    sizes = [size for index, size in enumerate(heads.sizes) if _mean(heads.follows, index) > 0]
    return max(sizes, default=None)


def _never_follows(heads: schemas.Corollary) -> str:
    last = follows_until(heads)
    if last is None or last == heads.sizes[-1]:
        return "The highest item of each set was given every class in turn, with all others kept."
    size = heads.sizes[heads.sizes.index(last) + 1]
    return (
        "If the highest item is given every class in turn and all others stay, no head's answer "
        f"follows it in all ten cases from {size:,} items on."
    )


def certain_from(heads: schemas.Corollary, name: str) -> tuple[float, float]:
    """Return the smallest and the largest number of items from which on it is certain."""
    column = heads.types.index(name)
    values = [row[column] for row in heads.ignored_from]
    known = [math.inf if value is None else value for value in values]
    return min(known), max(known)


def _certain(heads: schemas.Corollary) -> list[str]:
    sentences = []
    for name in ("bfloat16", "float32"):
        low, high = certain_from(heads, name)
        sentences.append(
            f"In {name} no exchange of the highest item can change what the head returns: from "
            f"{_count(low)} items on for the first of the heads, from {_count(high)} for the last."
        )
    return sentences


def _count(value: float) -> str:
    if not math.isfinite(value):
        return "more items than a float can count"
    return f"{value:,.0f}" if value < 1e7 else f"10^{math.log10(value):.1f}"


def _range_line(name: str, heads: schemas.Corollary, rows: Sequence[Sequence[float]],
                colour: str, factor: float = 100.0) -> Line:  # fmt: skip
    values = factor * np.asarray(rows, float)
    low, high = values.min(0).tolist(), values.max(0).tolist()
    return Line(name, heads.sizes, values.mean(0).tolist(), low, high, colour=colour)


def _answers(heads: schemas.Corollary) -> Chart:
    return Chart(
        "Answers about the highest item",
        size_axis(heads.sizes),
        Axis("sets, %", digits=1, unit="%", low=0, high=104),
        [
            _range_line("right answer", heads, heads.accuracy, "series-1"),
            _range_line("depends on its class", heads, heads.depends, "series-3"),
            _range_line("follows its class in all ten cases", heads, heads.follows, "series-2"),
        ],
        [Rule("y", 100 * CHANCE, "a guess")],
        "Mean over the heads; band: range.",
    )


def _changes(heads: schemas.Corollary) -> Chart:
    bound: dict[str, float] = {"factor": 1.0}
    return Chart(
        "Largest change of the output, as a share of its size",
        size_axis(heads.sizes),
        Axis("relative change", scale="log", digits=4),
        [
            _range_line("bound", heads, heads.largest_change_bound, "ink", **bound),
            _range_line("measured", heads, heads.largest_change, "series-2", **bound),
        ],
        [Rule("y", 2.0**-7, "precision of bfloat16"), Rule("y", 2.0**-10, "of float16")],
        "Between any two classes of the highest item. Mean over the heads; band: range.",
    )


def _size_table(heads: schemas.Corollary) -> Table:
    rows = []
    bfloat16 = heads.types.index("bfloat16")
    for index, size in enumerate(heads.sizes):
        unseen = float(np.mean([row[index][bfloat16] for row in heads.unseen]))
        shares = [
            100 * _mean(rows_of, index)
            for rows_of in (heads.accuracy, heads.follows, heads.depends, heads.weight)
        ]
        rows.append([size, *shares, _mean(heads.largest_change, index), 100 * unseen])
    return Table(
        "By size",
        [
            Column("Items", 0),
            Column("Right %", 1, "higher"),
            Column("Follows %", 1, "higher"),
            Column("Depends %", 1, "higher"),
            Column("Weight of the highest %", 2, short="weight %"),
            Column("Largest change", 4, short="change"),
            Column("Unseen in bfloat16 %", 1, short="unseen %"),
        ],
        rows,
        "Means over the heads. Follows: the answer is the class of the highest item, whichever of "
        "the ten it is given. Depends: two of the ten answers differ. Largest change: between two "
        "outputs, as a share of their size. Unseen: sets in which that is below the precision of "
        "bfloat16.",
    )


def _type_table(heads: schemas.Corollary, seeds: Sequence[int]) -> Table:
    rows = []
    for index, seed in enumerate(seeds):
        values = heads.ignored_from[index]
        rows.append([seed, *(Cell(v, ABSENT if v is None else _count(v)) for v in values)])
    return Table(
        "Items from which on it is certain",
        [Column("Head", 0), *(Column(name, 0) for name in heads.types)],
        rows,
        "From so many random items on, no exchange of the highest one changes the output by as "
        "much as the type's precision. It holds for all but about one in 3 million sets.",
    )
