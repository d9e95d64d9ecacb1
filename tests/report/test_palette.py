"""One name and one colour per method, in every renderer."""

from __future__ import annotations

import re

from report.published import everything
from sharpmax import NORMALISERS, report
from sharpmax.report import palette
from sharpmax.report.blocks import Chart, Group
from sharpmax.report.renderers import html, matplotlib


def test_every_normaliser_has_a_look():
    assert set(NORMALISERS) <= set(palette.METHODS)
    looks = [(look.colour, look.dash) for look in map(palette.METHODS.get, NORMALISERS)]
    assert len(set(looks)) == len(looks)


def test_the_page_and_the_pictures_have_the_same_colours():
    style = str(html.style())
    for name, (light, dark) in palette.COLOURS.items():
        assert f"--{name}: light-dark({light}, {dark});" in style
        assert matplotlib.LIGHT[name] == light
    for label in palette.LABELS:
        assert (
            f'[data-label="{label}"] {{ --mark: var(--{palette.label_colour(label)}); }}' in style
        )


def test_every_colour_of_the_style_sheet_is_defined():
    used = set(re.findall(r"var\(--([\w-]+)\)", str(html.style()) + str(html.script())))
    assert used - {"mark"} <= set(palette.COLOURS)


def test_known_methods_look_the_same_whatever_else_is_there():
    alone = palette.looks(["paper"])["paper"]
    assert palette.looks(["mine", "plain", "paper", "log-length:64"])["paper"] == alone
    assert palette.looks(["adaptive-temperature"])["adaptive-temperature"] == alone
    assert palette.looks(["log-length:64"])["log-length:64"].name == "log n / log 64"


def test_unknown_methods_take_free_colours_then_dashes():
    methods = ["plain", "paper", *(f"own-{number}" for number in range(12))]
    looks = palette.looks(methods)
    own = [looks[method] for method in methods[2:]]
    assert [look.name for look in own] == methods[2:]
    assert palette.ADAPTIVE.colour not in {look.colour for look in own}
    assert len({(look.colour, look.dash) for look in own}) == 12


def test_a_line_of_a_method_has_its_colour_in_every_result():
    """Softmax and adaptive temperature, by name, in every chart of every committed result."""
    found = set()
    for result in everything().values():
        for block in report.describe(result).blocks:
            charts = block.charts if isinstance(block, Group) else [block]
            for chart in charts:
                for line in chart.coloured() if isinstance(chart, Chart) else ():
                    if line.name in ("softmax", "adaptive temperature", "hard (argmax)"):
                        found.add((line.name, line.colour))
    found -= {("hard (argmax)", "other")}  # where it is not among the best of a track
    assert found == {
        ("softmax", "ink"),
        ("adaptive temperature", "series-2"),
        ("hard (argmax)", "series-6"),
    }
