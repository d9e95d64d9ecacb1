"""Pictures: drawn from a saved result alone, as PNG and SVG, the same each time, nothing cut off."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hf.small import llama, tokenizer
from plot.synthetic import figure8
from sharpmax import UserError, hf, plot
from sharpmax.cli import tables
from sharpmax.experiments import head_entropy, one_head, power_series
from sharpmax.experiments.clrs_text.algorithms import TRAIN_SIZES
from sharpmax.plot import style
from sharpmax.results import Result

ROOT = Path(__file__).parents[2]
PUBLISHED = ("figure2", "figure6", "figure7", "leaderboard", "policies", "table1", "unknowns")
"""Drawn from what is published: making them anew takes minutes."""


EXPERIMENTS = {
    **{name: partial(Result.load, ROOT / "results" / f"{name}.json") for name in PUBLISHED},
    "certify": lambda: hf.certify(llama(), scan=hf.scan(llama(), tokenizer(), [4, 8])),
    "evaluate": lambda: hf.evaluate(
        llama(), tokenizer(), "lookup", lengths=[2, 4], prompts=6, questions=2
    ),
    "figure1": lambda: one_head.run(one_head.Config(sizes=(4, 64, 4096), repeats=2)),
    "figure3": lambda: head_entropy.run(head_entropy.Config(lengths=(8, 32), seeds=(0, 1))),
    "figure5": lambda: power_series.run(power_series.Config(bases=41, temperatures=31)),
    "figure8": figure8,
    "scan": lambda: hf.scan(llama(), tokenizer(), [4, 8, 16]),
}


@pytest.fixture(scope="module", params=sorted(EXPERIMENTS))
def stored(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / f"{request.param}.json"
    return EXPERIMENTS[request.param]().save(path)


def test_every_kind_has_a_test():
    assert set(plot.KINDS) == set(EXPERIMENTS)


def test_drawn_from_the_file_the_same_each_time(stored, tmp_path):
    settings = dict(mpl.rcParams)
    files = []
    for folder in ("one", "two"):
        figure = plot.draw(Result.load(stored))
        files.append(style.save(figure, tmp_path / folder / "picture"))
    assert [one.read_bytes() for one in files[0]] == [two.read_bytes() for two in files[1]]
    assert dict(mpl.rcParams) == settings  # the caller's style is left alone
    pixels = image.imread(io.BytesIO(files[0][0].read_bytes()))
    assert pixels.shape[1] >= 1500
    colours = (255 * pixels[::5, ::5, :3]).astype(int) @ [1, 256, 256**2]
    assert len(np.unique(colours)) > 50


def test_nothing_is_cut_off(stored):
    """Every text of the picture lies inside it."""
    figure = plot.draw(Result.load(stored))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    whole = figure.bbox.padded(1.0)
    texts = [
        text for text in figure.findobj(mpl.text.Text) if text.get_visible() and text.get_text()
    ]
    ticks = {
        label
        for axes in figure.axes
        for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]
    }
    shown = [text for text in texts if text not in ticks]  # ticks outside the axes are not drawn
    assert len(shown) > 5
    for text in shown:
        box = text.get_window_extent(renderer)
        assert whole.contains(box.x0, box.y0), text.get_text()
        assert whole.contains(box.x1, box.y1), text.get_text()


def test_a_picture_is_not_replaced_unasked(tmp_path):
    figure = plot.draw(figure8())
    style.save(figure, tmp_path / "picture")
    with pytest.raises(UserError, match=r"picture\.png.*picture\.svg exists already"):
        style.save(figure, tmp_path / "picture")
    style.save(figure, tmp_path / "picture", overwrite=True)


def test_a_kind_without_a_picture_is_refused():
    other = figure8().model_copy(update={"kind": "poem"})
    with pytest.raises(
        UserError, match="no picture for results of kind 'poem': expected certify, "
    ):
        plot.draw(other)


def test_a_leaderboard_of_one_task_in_which_a_track_has_nobody():
    whole = Result.load(ROOT / "results" / "leaderboard.json")
    rows = [row for row in whole.measurements["rows"] if row["task"] == "most-frequent"]
    part = whole.model_copy(
        update={
            "config": whole.config | {"tasks": ["most-frequent"]},
            "measurements": whole.measurements | {"rows": rows},
        }
    )
    titles = [axes.get_title(loc="left") for axes in plot.draw(part).axes]
    assert "augmented: accuracy on most-frequent" in titles
    tables.show(part)


def test_figure8_of_one_algorithm_has_one_panel_and_a_line_an_arm():
    figure = plot.draw(figure8(algorithms=1))
    (axes,) = [one for one in figure.axes if one.get_visible()]
    assert axes.get_title(loc="left") == "activity selector"
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) > 2]
    assert len(curves) == 4  # and the most that is to be expected
    marked = [span.get_x() + span.get_width() / 2 for span in axes.patches]
    assert marked == list(TRAIN_SIZES["activity_selector"])
