"""Pictures: the charts and maps of a result as one figure, saved as PNG and SVG.

The figure is a column of rows, each row one or more blocks side by side. A block has its heading
above and its legend below; all sizes are in inches, so that text never has to shrink.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax._errors import MissingExtraError, UserError
from sharpmax._files import refuse_overwriting, write_atomically
from sharpmax.report.blocks import (
    Axis,
    Block,
    Chart,
    Content,
    Dots,
    Frames,
    Group,
    Heads,
    Line,
    Rule,
)
from sharpmax.report.numbers import power_of_ten
from sharpmax.report.palette import LIGHT, SERIES

try:
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib import colors, lines, patches, ticker
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
except ModuleNotFoundError as error:
    raise MissingExtraError("matplotlib", "cli", "drawing a picture") from error

SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["muted"],
    "axes.grid": True,
    "axes.labelcolor": LIGHT["ink"],
    "axes.labelsize": 9.5,
    "axes.prop_cycle": cycler(color=[LIGHT[name] for name in SERIES]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.size": 10,
    "grid.color": LIGHT["faint"],
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "sharpmax",
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "xtick.labelcolor": LIGHT["ink"],
    "xtick.labelsize": 9,
    "ytick.color": LIGHT["muted"],
    "ytick.labelcolor": LIGHT["ink"],
    "ytick.labelsize": 9,
}
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 3)), "dot": (0, (1.3, 2)), "none": "none"}
COLOUR_MAP = "viridis"
SIGNED_COLOUR_MAP = "RdBu_r"
"""For numbers of either sign: 0 is nearly white."""

ROW_WIDTH = 15.0
"""Blocks stand side by side up to this width, in inches."""
MARGIN = 0.12
LINE = 0.2
"""Height of a line of small text."""
LETTERS = 12.0
"""Letters of small text per inch."""
PANEL = {1: (6.6, 4.1), 2: (5.0, 3.2), 3: (4.3, 2.9), 4: (3.1, 2.5), 5: (3.7, 3.1), 6: (3.0, 2.5)}
"""Width and height of a chart, by the number of charts in a row."""
FRAME = (2.1, 1.9)
DOT_LABELS, DOT_PANEL, DOT_ROW = 1.9, 3.4, 0.2
"""Widths of the labels and of a panel of a dot plot, and the height of its rows."""
FRAMES_PER_ROW = 6


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with our settings inside the block, and leave the caller's as they were."""
    with mpl.rc_context(SETTINGS):
        yield


def save(figure: Figure, stem: Path, *, overwrite: bool = False) -> list[Path]:
    """Write a picture as PNG and as SVG, the same bytes for the same picture."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    refuse_overwriting(paths, overwrite)
    with house_style():
        for path in paths:
            buffer = io.BytesIO()
            undated = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            figure.savefig(buffer, format=path.suffix[1:], metadata=undated)
            write_atomically(path, buffer.getvalue())
    return paths


def draw(content: Content, kind: str = "") -> Figure:
    """Draw the picture of a result."""
    candidates = content.blocks if content.picture is None else content.picture
    drawable = (Chart, Group, Dots, Frames, Heads)
    boxes = [Box.of(block) for block in candidates if isinstance(block, drawable)]
    if not boxes:
        raise UserError(f"no picture for results of kind {kind!r}: they have no charts")
    rows = _rows(boxes)
    width = max(sum(box.width for box in row) for row in rows)
    title = textwrap.wrap(content.title, int(8.2 * width))
    what = content.what[:1].upper() + content.what[1:]
    facts = textwrap.wrap(" · ".join([what, *content.facts]), int(LETTERS * width))
    header = 0.16 + 0.25 * len(title) + LINE * len(facts)
    heights = [header]
    for row in rows:
        heights.append(
            max(box.heading for box in row)
            + max(box.body for box in row)
            + max(box.foot for box in row)
        )
    with house_style():
        figure = Figure(figsize=(width, sum(heights)))
        bands = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        _write(bands[0], "\n".join(title), 0.1, header, size=12.5, weight="bold")
        _write(bands[0], "\n".join(facts), 0.13 + 0.25 * len(title), header, color=LIGHT["muted"])
        for band, row, height in zip(bands[1:], rows, heights[1:], strict=True):
            # Equal headings and legends in a row, so that the charts are level.
            heading, foot = max(box.heading for box in row), max(box.foot for box in row)
            widths = [box.width for box in row]
            widths[-1] += width - sum(widths)  # the last one takes what is left
            parts = band.subfigures(1, len(row), width_ratios=widths, squeeze=False)[0]
            for part, box in zip(parts, row, strict=True):
                box.draw(part, [heading, height - heading - foot, foot])
        _freeze(figure)
    return figure


def _freeze(figure: Figure) -> None:
    """Lay the figure out once, and round every position.

    The layout's solver differs by some 1e-16 between runs, which would change the bytes of an SVG.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for part in figure.findobj(SubFigure):
        part.bbox_relative.p0 = np.round(part.bbox_relative.p0, 6)
        part.bbox_relative.p1 = np.round(part.bbox_relative.p1, 6)
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position().bounds, 6).tolist())


def _rows(boxes: Sequence[Box]) -> list[list[Box]]:
    """Put blocks side by side as far as there is room."""
    rows: list[list[Box]] = []
    for box in boxes:
        if rows and sum(other.width for other in rows[-1]) + box.width <= ROW_WIDTH:
            rows[-1].append(box)
        else:
            rows.append([box])
    return rows


def _write(figure: SubFigure, text: str, top: float, height: float, **style: Any) -> None:
    """Write text at the left, `top` inches below the upper edge."""
    left = MARGIN / (figure.bbox.width / figure.dpi)
    defaults: dict[str, Any] = {"size": 9, "va": "top", "ha": "left", "linespacing": 1.25}
    figure.text(left, 1 - top / height, text, **(defaults | style))


@dataclass(frozen=True)
class Box:
    """A block with its place: heading, body and legend, in inches."""

    block: Chart | Group | Dots | Frames | Heads
    width: float
    body: float
    legend: Sequence[Line] = ()
    caption: Sequence[str] = field(default_factory=list)

    @classmethod
    def of(cls, block: Block) -> Box:
        """Measure a block."""
        lines: list[Line] = []
        if isinstance(block, Chart):
            (width, body), lines = PANEL[1], block.coloured()
        elif isinstance(block, Group):
            columns = _columns(block)
            panel_width, panel_height = PANEL[min(columns, 6)]
            width = columns * panel_width
            body = math.ceil(len(block.charts) / columns) * panel_height
            lines = [line for chart in block.charts for line in chart.coloured()]
        elif isinstance(block, Dots):
            width = DOT_LABELS + DOT_PANEL * len(block.panels)
            headings = sum(bool(row.heading) for row in block.rows)
            body = 0.75 + DOT_ROW * (len(block.rows) + headings)
        elif isinstance(block, Heads):
            heads, layers = len(block.present[0]), len(block.present)
            width = min(9.0, max(5.4, 1.8 + 0.28 * heads))
            body = min(10.0, max(4.1, 1.0 + 0.17 * layers))
        elif isinstance(block, Frames) and block.wide:
            width, body = 7.4, 4.4
        elif isinstance(block, Frames):
            columns = min(FRAMES_PER_ROW, len(block.frames))
            width = columns * FRAME[0] + 1.2
            body = math.ceil(len(block.frames) / columns) * FRAME[1]
        else:
            raise TypeError(f"{type(block).__name__} cannot be drawn")
        named = {line.name: line for line in reversed(lines) if line.colour != "other"}
        legend = list(reversed(named.values())) if len(named) > 1 else []
        return cls(block, width, body, legend, textwrap.wrap(block.text, int(LETTERS * width)))

    @property
    def heading(self) -> float:
        return 0.36 + LINE * len(self.caption)

    @property
    def legend_columns(self) -> int:
        longest = max(len(line.name) for line in self.legend)
        return max(1, min(len(self.legend), int(self.width / (0.62 + 0.07 * longest))))

    @property
    def foot(self) -> float:
        if not self.legend:
            return 0.05
        return 0.12 + 0.205 * math.ceil(len(self.legend) / self.legend_columns)

    def draw(self, figure: SubFigure, heights: Sequence[float]) -> None:
        """Draw heading, body and legend, with these heights."""
        heading = heights[0]
        parts = figure.subfigures(3, 1, height_ratios=heights, squeeze=False)
        head, body, foot = parts[:, 0]
        _write(head, self.block.title, 0.12, heading, size=11, weight="bold")
        _write(head, "\n".join(self.caption), 0.34, heading, color=LIGHT["muted"])
        if isinstance(self.block, Chart):
            _chart(body.subplots(), self.block, self.width)
        elif isinstance(self.block, Group):
            _group(body, self.block)
        elif isinstance(self.block, Dots):
            _dots(body, self.block)
        elif isinstance(self.block, Heads):
            _heads(body, self.block)
        elif self.block.wide:
            _plane(body, self.block)
        else:
            _frames(body, self.block)
        if self.legend:
            handles = [_handle(line) for line in self.legend]
            left = MARGIN / self.width
            foot.legend(
                handles=handles,
                loc="upper left",
                bbox_to_anchor=(left, 1.0),
                ncols=self.legend_columns,
                fontsize=9,
                borderaxespad=0,
                handlelength=2.6,
                columnspacing=1.4,
                labelspacing=0.35,
            )


def _columns(group: Group) -> int:
    """Return how many charts of a group stand in a row."""
    count = len(group.charts)
    if group.columns:
        return group.columns
    return count if count <= 3 else 2 if count == 4 else min(6, max(3, math.ceil(math.sqrt(count))))


def _handle(line: Line) -> Any:
    """Return the entry of a line in a legend."""
    if line.spread == "columns":
        return patches.Patch(color=LIGHT[str(line.colour)], label=line.name)
    style = _style(line)
    return lines.Line2D([], [], **(style | {"label": line.name, "lw": 1.8}))


def _style(line: Line) -> dict[str, Any]:
    radius = min(line.marks, 4.0)
    return {
        "color": LIGHT[str(line.colour)],
        "ls": DASHES[line.dash],
        "lw": 1.1 if line.colour == "other" else 1.7,
        "marker": "o" if line.marks else "",
        "ms": 1.7 * radius,
        "mew": 0,
    }


def _group(figure: SubFigure, group: Group) -> None:
    columns = _columns(group)
    rows = math.ceil(len(group.charts) / columns)
    panels = figure.subplots(rows, columns, squeeze=False)
    width = PANEL[min(columns, 6)][0]
    titles = {chart.y.title for chart in group.charts}
    for index, axes in enumerate(panels.flat):
        if index >= len(group.charts):
            axes.set_visible(False)
            continue
        chart = group.charts[index]
        _chart(axes, chart, width)
        axes.set_title(chart.title)
        if len(titles) == 1 and index % columns:
            axes.set_ylabel("")  # the same as at the left
        below = index + columns < len(group.charts)
        if below and group.charts[index + columns].x.title == chart.x.title:
            axes.set_xlabel("")


def _chart(axes: Axes, chart: Chart, width: float) -> None:
    lines = chart.coloured()
    barred = [line for line in lines if line.low is not None and line.spread == "bars"]
    for order, line in enumerate(lines):
        x, y = _array(line.x), _array(line.y)
        if line in barred and chart.x.scale == "log" and len(barred) > 1:
            # Side by side, so that error bars do not hide each other.
            x = x * 2 ** (0.3 * (barred.index(line) / (len(barred) - 1) - 0.5))
        _spread(axes, line, x)
        if line.spread != "columns":
            style = _style(line) | {"zorder": 2 + 0.01 * order}
            if line.dash == "none" and x.size > 50:
                style |= {"alpha": 0.6, "rasterized": True}
            axes.plot(x, y, **style)
    _axis(axes, "x", chart.x, width)
    _axis(axes, "y", chart.y, width)
    places = {at for line in lines for at in line.x if at is not None}
    if len(places) == 1 and chart.x.scale == "log":
        (place,) = places
        axes.set_xlim(place / 2, place * 2)
    labelled = any(rule.text for rule in chart.rules)
    for rule in chart.rules:
        _rule(axes, rule, labelled)


def _spread(axes: Axes, line: Line, x: np.ndarray) -> None:
    if line.low is None or line.high is None:
        return
    low, high, colour = _array(line.low), _array(line.high), LIGHT[str(line.colour)]
    if line.spread == "band":
        axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
    elif line.spread == "bars":
        axes.vlines(x, low, high, color=colour, lw=1)
    else:
        axes.bar(x, high - low, bottom=low, width=0.85, color=colour)


def _axis(axes: Axes, which: str, axis: Axis, width: float) -> None:
    target = axes.xaxis if which == "x" else axes.yaxis
    set_limits = axes.set_xlim if which == "x" else axes.set_ylim
    target.set_label_text(axis.title)
    if axis.scale == "log":
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    set_limits(axis.low, axis.high)
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    ticks = axis.ticks
    if ticks is not None:
        longest = max((len(f"{tick:,}") for tick in ticks), default=1)
        room = max(2, int((width - 0.5) / (0.12 + 0.075 * longest)))
        step = max(1, math.ceil((len(ticks) - 1) / max(1, room - 1))) if which == "x" else 1
        shown = [tick for index, tick in enumerate(ticks) if (len(ticks) - 1 - index) % step == 0]
        target.set_major_locator(ticker.FixedLocator(shown))
        target.set_minor_locator(ticker.NullLocator())
    elif axis.scale == "log":
        narrow = math.log10(high / low) < 2
        target.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if narrow else (1,)))
        target.set_minor_locator(ticker.NullLocator())
    else:
        target.set_major_locator(
            ticker.MaxNLocator(6, integer=axis.digits == 0, steps=[1, 2, 5, 10])
        )
    target.set_major_formatter(ticker.FuncFormatter(lambda value, _: _tick(axis, value)))


def _tick(axis: Axis, value: float) -> str:
    if axis.scale == "power":
        return power_of_ten(value) if value < 6 else f"$10^{{{value:.0f}}}$"
    if axis.scale == "log" and not 1e-3 <= value < 1e7:
        return f"$10^{{{math.log10(value):.0f}}}$"
    return f"{round(value, 6):,g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _rule(axes: Axes, rule: Rule, labelled: bool) -> None:
    low, high = axes.get_xlim() if rule.axis == "x" else axes.get_ylim()
    if not low <= rule.at <= high:
        return
    style: dict[str, Any] = {"color": LIGHT["muted"], "lw": 0.9, "ls": DASHES["dot"], "zorder": 1.5}
    if not labelled:
        style |= {"lw": 0.7, "color": LIGHT["other"]}
    text: dict[str, Any] = {"fontsize": 8.5, "color": LIGHT["muted"], "textcoords": "offset points"}
    if rule.axis == "y":
        axes.axhline(rule.at, **style)
        where = (0.0, rule.at)
        axes.annotate(rule.text, where, (4, 3), xycoords=("axes fraction", "data"), **text)
        return
    axes.axvline(rule.at, **style)
    left, _ = axes.transAxes.inverted().transform(axes.transData.transform((rule.at, 1)))
    side, align = (-5, "right") if left > 0.5 else (5, "left")
    where = (rule.at, 0.0)
    axes.annotate(rule.text, where, (side, 5), xycoords=("data", "axes fraction"), ha=align, **text)


def _dots(figure: SubFigure, block: Dots) -> None:
    """Draw rows of dots below each other, with their names at the left."""
    panels = figure.subplots(1, len(block.panels), squeeze=False, sharey=True)[0]
    places: list[float] = []
    names: list[str] = []
    bold: list[bool] = []
    rows: list[tuple[float, Any]] = []
    for row in block.rows:
        for name, heading in ((row.heading, True), (row.name, False)):
            if name:
                places.append(len(places))
                names.append(name)
                bold.append(heading)
        rows.append((places[-1], row))
    for index, (axes, axis) in enumerate(zip(panels, block.panels, strict=True)):
        for place, row in rows:
            mark, colour = row.marks[index], LIGHT[row.colour]
            if mark is None:
                continue
            if mark.low is not None and mark.high is not None:
                axes.hlines(place, mark.low, mark.high, color=colour, lw=1.6)
            if mark.points:
                axes.plot(
                    mark.points, [place] * len(mark.points), "o", color=colour, ms=3.2, alpha=0.65
                )
                axes.plot([mark.value], [place], "|", color=colour, ms=9, mew=2)
            else:
                axes.plot([mark.value], [place], "o", color=colour, ms=5)
        if block.rule is not None:
            axes.axvline(block.rule, color=LIGHT["muted"], lw=0.9, ls=DASHES["dot"], zorder=1.5)
        _axis(axes, "x", axis, DOT_PANEL)
        axes.set_ylim(len(places) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(places, names)
    for label, heading in zip(panels[0].get_yticklabels(), bold, strict=True):
        label.set_fontweight("bold" if heading else "normal")


def _heads(figure: SubFigure, block: Heads) -> None:
    """Draw the first measure of every head: a row per layer, the first at the top."""
    measure = block.measures[0]
    values = np.ma.masked_invalid(np.array([_array(row) for row in block.measures[0].values]))
    axes = figure.subplots()
    axes.set_facecolor(LIGHT["absent"])
    norm: colors.Normalize
    colour_map = COLOUR_MAP
    if measure.scale == "signed":
        end = np.abs(values).max()
        norm, colour_map = colors.Normalize(-end, end), SIGNED_COLOUR_MAP
    elif measure.scale == "log":
        norm = colors.LogNorm(values.min(), values.max())
    else:
        norm = colors.Normalize(min(0.0, values.min()), values.max())
    image = axes.imshow(values, cmap=colour_map, norm=norm, aspect="auto", interpolation="nearest")
    for (row, column), letter in block.marks.items():
        light = not norm(values[row, column]) > 0.6
        colour = "white" if light else LIGHT["ink"]
        axes.text(column, row, letter, ha="center", va="center", color=colour, fontsize=7)
    numbers = block.numbers or range(values.shape[1])
    layers = [layer["index"] for layer in block.layers]
    for set_ticks, names in ((axes.set_xticks, numbers), (axes.set_yticks, layers)):
        step = max(1, math.ceil(len(names) / 16))
        set_ticks(range(0, len(names), step), [str(name) for name in names[::step]])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="head", ylabel="attention layer")
    figure.colorbar(image, ax=axes, label=measure.name, fraction=0.05, pad=0.03)


def _frames(figure: SubFigure, block: Frames) -> None:
    """Draw matrices as small images on one colour scale."""
    columns = min(FRAMES_PER_ROW, len(block.frames))
    rows = math.ceil(len(block.frames) / columns)
    panels = figure.subplots(rows, columns, squeeze=False)
    image: Any = None
    for index, axes in enumerate(panels.flat):
        if index >= len(block.frames):
            axes.set_visible(False)
            continue
        image = axes.imshow(
            np.asarray(block.frames[index], float),
            cmap=SIGNED_COLOUR_MAP if block.signed else COLOUR_MAP,
            vmin=block.ends[0],
            vmax=block.ends[1],
            aspect="auto",
            interpolation="nearest",
        )
        axes.set_title(block.captions[index], fontsize=9.5)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
        if index % columns == 0:
            axes.set_ylabel(block.sides[0])
    figure.supxlabel(block.sides[1], fontsize=9.5)
    figure.colorbar(image, ax=panels, label=block.unit, shrink=0.9, pad=0.012, aspect=30)


def _plane(figure: SubFigure, block: Frames) -> None:
    """Draw one matrix over the width of the block, with a contour line and the names of regions."""
    values = np.asarray(block.frames[0], float)
    axes = figure.subplots()
    image = axes.imshow(
        values,
        cmap=COLOUR_MAP,
        vmin=block.ends[0],
        vmax=block.ends[1],
        aspect="auto",
        interpolation="bilinear",
    )
    if block.contour is not None:
        axes.contour(values, levels=[block.contour], colors="white", linewidths=1.3)
    axes.set_yticks(list(block.ticks[0]), list(block.ticks[0].values()))
    axes.set_xticks(list(block.ticks[1]), list(block.ticks[1].values()))
    axes.grid(visible=False)
    axes.set(xlabel=block.sides[1], ylabel=block.sides[0])
    for region in block.regions:
        axes.text(
            region.left,
            1 - region.top,
            region.text,
            transform=axes.transAxes,
            rotation=90 if region.upright else 0,
            color="white",
            ha="center",
            va="center",
            fontsize=9,
            bbox={"facecolor": LIGHT["ink"], "alpha": 0.6, "edgecolor": "none", "pad": 2.5},
        )
    figure.colorbar(image, ax=axes, label=block.unit, pad=0.02)


def _array(values: Any) -> np.ndarray:
    """Return numbers as floats, NaN for None."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)
