"""The language in which a result is described, once, for every renderer.

A module of `sharpmax.report.kinds` turns a result into a `Content`: a title, a verdict, sentences,
and blocks (charts, tables, maps). The renderers for HTML, pictures, the terminal and Markdown know
blocks and no kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from types import NoneType
from typing import Any, ClassVar, Literal

from sharpmax.report.numbers import fixed, join
from sharpmax.report.palette import SERIES, Dash, Look

Numbers = Sequence[float | None]
Scale = Literal["linear", "log", "power"]
"""`power`: the numbers are exponents of ten."""


@dataclass(frozen=True)
class Axis:
    """How an axis places its numbers, and how it writes them."""

    title: str
    scale: Scale = "linear"
    digits: int = 0
    unit: str = ""
    noun: str = ""
    """What a number of the horizontal axis counts, such as "items"."""
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None


@dataclass(frozen=True)
class Line:
    """One series of a chart: a line, or with `dash="none"` a cloud of points."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    spread: Literal["band", "bars", "columns"] = "band"
    """How low and high are drawn: as a band, as error bars, or as the columns of a bar chart."""
    colour: str | None = None
    """A name of the palette; None takes the next colour."""
    dash: Dash = "solid"
    marks: float = 2.5
    """Radius of the points; 0 draws none."""
    labels: Sequence[str] | None = None
    """Names of the points, where each has its own."""

    @classmethod
    def of(cls, look: Look, x: Numbers, y: Numbers, **options: Any) -> Line:
        """Return the line of a method, with its name, colour and dashes."""
        style = {"name": look.name, "colour": look.colour, "dash": look.dash} | options
        return cls(x=x, y=y, **style)


@dataclass(frozen=True)
class Rule:
    """A straight line across a chart, with its meaning."""

    axis: Literal["x", "y"]
    at: float
    text: str = ""


@dataclass(frozen=True)
class Chart:
    """Lines over two axes."""

    template: ClassVar[str] = "chart"
    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    rules: Sequence[Rule] = ()
    text: str = ""
    single: bool = False
    """Whether pointing at the chart reads one point instead of all lines at that place."""

    def coloured(self) -> list[Line]:
        """Return the lines, each with a colour: those without take the next one.

        From the second round of the colours on they are dashed.
        """
        lines, free = [], 0
        for line in self.lines:
            if line.colour is None:
                turn, index = divmod(free, len(SERIES))
                dash = "dash" if turn and line.dash == "solid" else line.dash
                line = replace(line, colour=SERIES[index], dash=dash)
                free += 1
            lines.append(line)
        return lines


@dataclass(frozen=True)
class Group:
    """Small charts side by side with one legend: lines of the same name look alike in all."""

    template: ClassVar[str] = "group"
    title: str
    charts: Sequence[Chart]
    text: str = ""
    columns: int = 0
    """Charts per row of a picture; 0 chooses by their number."""


@dataclass(frozen=True)
class Mark:
    """One number of a row of dots, with its interval or with the measurements behind it."""

    value: float
    low: float | None = None
    high: float | None = None
    points: Sequence[float] = ()


@dataclass(frozen=True)
class DotRow:
    """A row of a dot plot: a name, and a mark per panel; None where nothing was measured."""

    name: str
    colour: str
    marks: Sequence[Mark | None]
    heading: str = ""
    """What this row and those below are about, written above it."""


@dataclass(frozen=True)
class Dots:
    """Numbers as dots in rows that are labelled directly, in panels side by side."""

    template: ClassVar[str] = "dots"
    title: str
    panels: Sequence[Axis]
    rows: Sequence[DotRow]
    text: str = ""
    rule: float | None = None
    """A number that is marked in each panel, such as no change."""

    def __post_init__(self) -> None:
        """Check the rows here, where a damaged result is still known by its name."""
        for row in self.rows:
            if len(row.marks) != len(self.panels):
                raise TypeError(f"{row.name!r} in {self.title!r} has {len(row.marks)} marks")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    digits: int | None = None
    """Decimals; None for text."""
    better: Literal["higher", "lower"] | None = None
    """Which direction is better, where one is."""
    short: str | None = None
    """A shorter name for the terminal; "" leaves the column out there."""


@dataclass(frozen=True)
class Cell:
    """A number with its own text, such as its spread; tables sort by the number."""

    value: float | None
    text: str


@dataclass(frozen=True)
class Table:
    """Rows of numbers and text."""

    template: ClassVar[str] = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    text: str = ""
    terminal: bool = True
    """Whether the terminal prints it; long tables are for the page only."""

    def __post_init__(self) -> None:
        """Check the cells here, where a damaged result is still known by its name."""
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                if column.digits is not None and not isinstance(cell, (Cell, Real, NoneType)):
                    raise TypeError(f"{column.name} in {self.title!r} is {cell!r}, not a number")

    def cells(self, row: Sequence[Any]) -> list[Cell | str]:
        """Return what each cell shows: text, or a number with its text."""
        cells: list[Cell | str] = []
        for column, cell in zip(self.columns, row, strict=True):
            if isinstance(cell, Cell):
                cells.append(cell)
            elif column.digits is None:
                cells.append(str(cell))
            else:
                cells.append(Cell(cell, fixed(cell, column.digits)))
        return cells

    @property
    def caption(self) -> str:
        """The text, and in which columns higher or lower is better."""
        notes = [self.text] if self.text else []
        numbers = [column for column in self.columns if column.digits is not None]
        for direction in ("higher", "lower"):
            names = [column.name for column in numbers if column.better == direction]
            if names and len(names) == len(numbers):
                notes.append(f"{direction.capitalize()} is better.")
            elif names:
                quoted = [f"“{name}”" for name in names]
                where = (
                    f"{quoted[0]} to {quoted[-1]}" if _adjacent(names, numbers) else join(quoted)
                )
                notes.append(f"{direction.capitalize()} is better in {where}.")
        return " ".join(notes)


def _adjacent(names: Sequence[str], columns: Sequence[Column]) -> bool:
    """Return whether these are more than two columns side by side."""
    every = [column.name for column in columns]
    first = every.index(names[0])
    return len(names) > 2 and every[first : first + len(names)] == list(names)


@dataclass(frozen=True)
class Region:
    """A name for a part of a frame, at a place given as shares of its width and height."""

    text: str
    left: float
    top: float
    upright: bool = False
    """Whether it is written upwards, where there is little width."""


@dataclass(frozen=True)
class Frames:
    """Matrices as colours, each with its caption, on one scale."""

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
    """Whether a frame takes the width of the page."""
    signed: bool = False
    """Whether the colours tell negative from positive numbers."""
    marked: int | None = None
    """A column to point out, such as that of the right answer."""
    sides: tuple[str, str] = ("", "")
    """What the rows and the columns are."""
    ticks: tuple[Mapping[int, str], Mapping[int, str]] = field(default=({}, {}))
    """Labels of some rows and columns in a wide picture, by index."""
    contour: float | None = None
    """A value whose contour line a picture draws."""
    regions: Sequence[Region] = ()


@dataclass(frozen=True)
class Measure:
    """One number per head: [layer, head], None where there is none."""

    key: str
    name: str
    values: Sequence[Numbers]
    digits: int
    unit: str = ""
    scale: Scale | Literal["signed"] = "linear"
    """`signed`: colours that tell negative from positive numbers."""


@dataclass(frozen=True)
class Heads:
    """A map of heads, and the numbers of the one that is chosen."""

    template: ClassVar[str] = "heads"
    title: str
    layers: Sequence[Mapping[str, Any]]
    present: Sequence[Sequence[bool]]
    measures: Sequence[Measure]
    first: tuple[int, int]
    """The head that is chosen when the page opens: row and column."""
    without: str
    """What is said of a head without a number."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Data for the curves of the chosen head."""
    text: str = ""
    numbers: Sequence[int] | None = None
    """The numbers of the heads; None counts from 0."""
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Letters in the cells of a picture, by row and column."""


@dataclass(frozen=True)
class TokenView:
    """Inputs as text, each token coloured by the weight that the chosen head gives it."""

    template: ClassVar[str] = "tokens"
    title: str
    inputs: Sequence[str]
    """What each input is called, such as "plain, 50 tokens"."""
    data: Mapping[str, Any]
    """The inputs' tokens, and those that each head looks at most."""
    text: str = ""


@dataclass(frozen=True)
class HeadStatistics:
    """Every statistic of every head at every length, to be explored on the page."""

    template: ClassVar[str] = "scan"
    title: str
    data: Mapping[str, Any]
    table: Table
    """All heads; its first three columns are layer, head and label."""
    cells: Sequence[tuple[int, int]]
    """Where each row of the table is in the map: row and column."""
    tokens: TokenView | None = None
    """What the chosen head looks at, if the scan kept it."""


Block = Chart | Group | Dots | Table | Frames | Heads | HeadStatistics | TokenView


@dataclass(frozen=True)
class Verdict:
    """What a result means for the reader."""

    status: Literal["good", "bad", "mixed", "neutral"]
    sentence: str
    details: Sequence[str] = ()
    command: str = ""
    """What to type next, one command per line."""


@dataclass(frozen=True)
class Content:
    """Everything that is said about one result."""

    what: str
    """The kind of result, in words."""
    title: str
    facts: Sequence[str]
    sentences: Sequence[str]
    blocks: Sequence[Block]
    verdict: Verdict
    notes: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Heads by label, shown as a bar."""
    glossary: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Terms and their meaning, by heading."""
    picture: Sequence[Block] | None = None
    """The blocks that the picture shows; None shows every chart and map."""
    took: str = ""
    """More about the time that it took."""
