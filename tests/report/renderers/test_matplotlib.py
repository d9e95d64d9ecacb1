"""Pictures: drawn from a result alone, the same each time, with nothing cut off."""

from __future__ import annotations

import io
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color

from report.pages import tiny
from report.published import ALL, UNPUBLISHED, first_of
from report.synthetic import figure8, scan
from sharpmax import UserError, report
from sharpmax.report.blocks import Axis, Chart, Content, Group, Line, Rule, Verdict
from sharpmax.report.palette import LIGHT
from sharpmax.report.renderers.matplotlib import draw

WITHOUT_CHARTS = (
    "bench-generate",
    "bench-long",
    "bench-max-retrieval",
    "bench-scan",
    "bench-training",
    "serving",
)
SLOW = ("leaderboard",)
DRAWN = [
    pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind
    for kind in ALL
    if kind not in WITHOUT_CHARTS
]


VERDICT = Verdict("neutral", "So.")


def content_of(*blocks) -> Content:
    return Content("test", "A title", ["a fact"], ["A sentence."], blocks, VERDICT)


def texts(figure) -> list[mpl.text.Text]:
    """All texts but tick labels: ticks outside the axes are not drawn."""
    ticks = {
        label
        for axes in figure.axes
        for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]
    }
    every = figure.findobj(mpl.text.Text)
    return [t for t in every if t.get_visible() and t.get_text() and t not in ticks]


@pytest.mark.parametrize("kind", DRAWN)
def test_nothing_is_cut_off_and_words_are_those_of_the_report(kind):
    result = first_of(kind)
    figure, content = report.draw(result), report.describe(result)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    whole = figure.bbox.padded(1.0)
    shown = texts(figure)
    assert len(shown) > 5
    for text in shown:
        box = text.get_window_extent(renderer)
        assert whole.contains(box.x0, box.y0), text.get_text()
        assert whole.contains(box.x1, box.y1), text.get_text()
    words = " ".join(" ".join(text.get_text() for text in shown).split())
    assert content.title in words
    for axes in figure.axes:
        if axes.get_visible() and axes.get_lines():
            assert axes.get_xlabel() or axes.get_title(loc="left"), "an axis without a name"
    pixels = np.asarray(canvas.buffer_rgba())[::5, ::5, :3].astype(int) @ [1, 256, 256**2]
    assert len(np.unique(pixels)) > 40


def test_saved_the_same_each_time(tmp_path):
    settings = dict(mpl.rcParams)
    files = [
        report.save_picture(report.draw(tiny()), tmp_path / folder / "picture")
        for folder in ("one", "two")
    ]
    assert [path.suffix for path in files[0]] == [".png", ".svg"]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert dict(mpl.rcParams) == settings  # the caller's style is left alone
    assert image.imread(io.BytesIO(files[0][0].read_bytes())).shape[1] >= 1200


def test_a_picture_is_not_replaced_without_being_asked(tmp_path):
    figure = report.draw(figure8(1))
    report.save_picture(figure, tmp_path / "picture")
    with pytest.raises(UserError, match=r"picture\.png.*picture\.svg exists already"):
        report.save_picture(figure, tmp_path / "picture")
    report.save_picture(figure, tmp_path / "picture", overwrite=True)


def test_kinds_without_charts_have_no_picture():
    for kind in sorted(set(WITHOUT_CHARTS) - UNPUBLISHED):
        with pytest.raises(UserError, match=f"no picture for results of kind '{kind}'"):
            report.draw(first_of(kind))


def test_lines_have_the_numbers_and_colours_of_the_chart():
    lines = [
        Line("a", [1, 2, 4], [3.0, None, 5.0], colour="series-4", dash="dash"),
        Line("b", [1, 2, 4], [1.0, 2.0, 3.0], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5]),
    ]
    x, y = Axis("items", scale="log", ticks=[1, 2, 4]), Axis("share", low=0, high=10)
    chart = Chart("Title", x, y, lines, [Rule("y", 6, "limit"), Rule("y", 60, "outside")])
    (axes,) = draw(content_of(chart)).axes
    first, second = (line for line in axes.get_lines() if len(line.get_xdata()) == 3)
    np.testing.assert_array_equal(first.get_ydata(), [3.0, np.nan, 5.0])
    assert same_color(first.get_color(), LIGHT["series-4"])
    assert same_color(second.get_color(), LIGHT["series-1"])
    assert first.get_linestyle() == "--" or first.is_dashed()
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.5, 3.5)
    assert axes.get_xscale() == "log"
    assert axes.get_ylim() == (0, 10)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("items", "share")
    notes = [text.get_text() for text in axes.texts]
    assert notes == ["limit"]


def test_a_legend_names_each_line_once_and_no_grey_one():
    def chart(title: str) -> Chart:
        names = (("softmax", "ink"), ("other method", "other"), ("adaptive", "series-2"))
        lines = [Line(name, [1, 2], [1, 2], colour=colour) for name, colour in names]
        return Chart(title, Axis("x"), Axis("y"), lines)

    figure = draw(content_of(Group("Group", [chart("One"), chart("Two")])))
    legends = figure.findobj(mpl.legend.Legend)
    assert [[t.get_text() for t in legend.get_texts()] for legend in legends] == [
        ["softmax", "adaptive"]
    ]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["One", "Two"]


def test_the_map_of_a_scan_shows_the_slopes():
    result = scan(4, 3, 3)
    axes = next(axes for axes in report.draw(result).axes if axes.get_images())
    shown = axes.get_images()[0].get_array()
    expected = np.array(result.measurements["slopes"], dtype=float)
    np.testing.assert_allclose(shown.filled(np.nan), expected)
    letters = {text.get_position(): text.get_text() for text in axes.texts}
    for row, labels in enumerate(result.measurements["labels"]):
        for column, label in enumerate(labels):
            assert letters.get((column, row), "") == {"sink": "s", "uniform": "u"}.get(label, "")


def test_figure8_of_one_algorithm_has_one_panel_and_a_line_per_condition():
    result = figure8(algorithms=1)
    (axes,) = (one for one in report.draw(result).axes if one.get_visible())
    assert axes.get_title(loc="left") == "algorithm 0"
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) > 2]
    assert len(curves) == 4  # and the share of answers that training can teach
    marked = [line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 2]
    assert marked == [4, 8, 12, 16, 20]


def test_the_old_module_still_draws_and_says_that_it_is_deprecated(monkeypatch):
    for name in ("sharpmax.plot", "sharpmax.plot.style"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=r"use sharpmax\.report\.draw"):
        import sharpmax.plot  # noqa: PLC0415, RUF100
    from sharpmax.plot import style

    assert sharpmax.plot.draw(tiny()).axes
    with style.house_style():
        assert mpl.rcParams["svg.hashsalt"] == "sharpmax"
    assert style.BOUND


def test_a_missing_matplotlib_is_one_sentence():
    source = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from sharpmax import report; report.draw(report.load(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", source, "results/figure1.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "drawing a picture needs matplotlib, which is not installed" in done.stderr
