"""Every kind of result needs the same few things on its page: charts, tables, maps, sentences.

A kind says what it found as `Content`, made of these blocks; the templates and the page's script
know blocks and no kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from markupsafe import Markup

from sharpmax.report import provenance
from sharpmax.report.numbers import number, rounded
from sharpmax.report.page import Section, embedded_json, fill
from sharpmax.results import Result

COLOURS = 7
"""Of lines, in the style sheet; the eighth line has the first again, and dashes."""

WIDE = 16
"""Heads a layer from which a map takes the whole width of the page."""

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Axis:
    """How an axis places its numbers and says them."""

    title: str
    scale: Literal["linear", "log", "power"] = "linear"
    """`power`: the numbers are exponents of ten."""
    digits: int = 0
    unit: str = ""
    noun: str = ""
    """What a number of the horizontal axis counts."""
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None


@dataclass(frozen=True)
class Line:
    """One line of a chart, or with `dash="none"` a cloud of points."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    spread: Literal["band", "bars"] = "band"
    colour: str | None = None
    """A name from the style sheet; None: the next colour."""
    dash: Literal["solid", "dash", "dot", "none"] = "solid"
    marks: float = 2.5
    """Radius of the points; 0: none."""
    labels: Sequence[str] | None = None
    """Of the points, where each has a name of its own."""


@dataclass(frozen=True)
class Rule:
    """A straight line across a chart, with its meaning."""

    axis: Literal["x", "y"]
    at: float
    text: str = ""


@dataclass(frozen=True)
class Chart:
    template: ClassVar[str] = "chart"
    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    rules: Sequence[Rule] = ()
    text: str = ""
    single: bool = False
    """Whether pointing at it tells of one point and not of all above each other."""

    @property
    def data(self) -> Markup:
        lines = [asdict(line) for line in self.lines]
        free = 0
        for line in lines:
            if line["colour"] is None:
                turn, place = divmod(free, COLOURS)
                line["colour"] = f"series-{place + 1}"
                line["dash"] = "dash" if turn and line["dash"] == "solid" else line["dash"]
                free += 1
            line["colour"] = f"var(--{line['colour']})"
        spec = asdict(self) | {"lines": lines}
        return embedded_json(rounded(spec))


@dataclass(frozen=True)
class Group:
    """Small charts side by side, to be compared, under one heading and one legend: lines of the
    same name look alike in all of them.
    """

    template: ClassVar[str] = "group"
    title: str
    charts: Sequence[Chart]
    text: str = ""


@dataclass(frozen=True)
class Column:
    name: str
    digits: int | None = None
    """Decimals; None: text."""


@dataclass(frozen=True)
class Told:
    """A number with words of its own, such as its spread; sorted by the number."""

    value: float | None
    text: str


@dataclass(frozen=True)
class Table:
    template: ClassVar[str] = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    text: str = ""

    def cells(self, row: Sequence[Any]) -> list[tuple[Any, str]]:
        """The value to sort by, "" if it is not known and None for text, and what is shown."""
        made: list[tuple[Any, str]] = []
        for column, cell in zip(self.columns, row, strict=True):
            if isinstance(cell, Told):
                made.append(("" if cell.value is None else cell.value, cell.text))
            elif column.digits is None:
                made.append((None, str(cell)))
            else:
                made.append(("" if cell is None else cell, number(cell, column.digits)))
        return made


@dataclass(frozen=True)
class Frames:
    """Matrices as colours, each with its caption, in one scale."""

    template: ClassVar[str] = "frames"
    title: str
    captions: Sequence[str]
    frames: Sequence[Any]
    """[frame, row, column]."""
    rows: Sequence[str]
    columns: Sequence[str]
    ends: tuple[float, float]
    unit: str
    digits: int
    text: str = ""
    wide: bool = False

    @property
    def data(self) -> Markup:
        known = {name: getattr(self, name) for name in ("rows", "columns", "ends", "digits")}
        return embedded_json(rounded({**known, "unit": self.unit, "frames": self.frames}))


@dataclass(frozen=True)
class Measure:
    """One number of each head: [layer, head], None where there is none."""

    key: str
    name: str
    values: Sequence[Numbers]
    digits: int
    unit: str = ""
    scale: Literal["linear", "log", "power"] = "linear"


@dataclass(frozen=True)
class Heads:
    """A map of heads, and the numbers of the one that is chosen."""

    template: ClassVar[str] = "heads"
    title: str
    layers: Sequence[dict[str, Any]]
    present: Sequence[Sequence[bool]]
    measures: Sequence[Measure]
    first: tuple[int, int]
    """The head that is chosen when the page opens: row and column."""
    without: str
    """What is said of a head without a number."""
    extra: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def widest(self) -> int:
        return max(len(row) for row in self.present)

    @property
    def wide(self) -> bool:
        return self.widest > WIDE

    @property
    def data(self) -> Markup:
        numbers = range(self.widest)
        statistics = [
            {name: getattr(one, name) for name in ("key", "name", "digits", "unit", "scale")}
            for one in self.measures
        ]
        return embedded_json(
            rounded(
                {
                    "layers": list(self.layers),
                    "heads": list(numbers),
                    "present": self.present,
                    "statistics": statistics,
                    "values": {one.key: one.values for one in self.measures},
                    "first": self.first,
                    "without": self.without,
                    **self.extra,
                }
            )
        )


Block = Chart | Group | Table | Frames | Heads


@dataclass(frozen=True)
class Content:
    """One result: its title, what it says in sentences, and the evidence."""

    what: str
    """The kind, in words."""
    title: str
    facts: Sequence[str]
    findings: Sequence[str]
    advice: Sequence[str]
    blocks: Sequence[Block]
    code: str | None = None
    """What to type, below the advice."""
    notes: Sequence[str] = ()


def section(content: Content, result: Result | None, anchor: str, level: int) -> Section:
    """The content as a piece of the page; a calibration has no provenance, so no result."""
    origin = None if result is None else provenance.of(result)
    html = fill("section.html", anchor=anchor, level=level, content=content, origin=origin)
    return Section(content.title, content.what, anchor, html)
