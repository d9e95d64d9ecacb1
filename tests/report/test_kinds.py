"""Every kind of result has a page, whose sentences say what the numbers say."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest

from report.pages import Page
from report.published import ALL, everything, evil, one_of
from report.synthetic import scan
from sharpmax import UserError, plot, report
from sharpmax.report import KINDS, certify


def text_of(result) -> str:
    return Page(report.render([result])).text


def test_every_kind_that_is_published_or_drawn_has_a_page():
    there = {result.kind for result in everything().values()}
    assert there == set(ALL)
    assert set(plot.KINDS) <= set(ALL)


@pytest.mark.parametrize("name", sorted(everything()))
def test_a_page_says_what_it_found_and_what_made_it(name):
    result = everything()[name]
    html = report.render([result])
    page = Page(html)
    assert "Summary" in page.text
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    if result.kind != "calibration":
        assert page.text.count(" ".join(result.provenance.command.split())) >= 2
        assert "How it was made" in page.text
    assert len(html.encode()) < 500_000
    assert report.render([result]) == html


@pytest.mark.parametrize("kind", ALL)
def test_text_of_a_result_is_only_ever_text(kind):
    found, harmless = Page(report.render([evil(kind)])), Page(report.render([one_of(kind)]))
    assert len(found.scripts) == len(harmless.scripts)
    assert {tag for tag, _ in found.elements} == {tag for tag, _ in harmless.elements}
    assert not found.all("img")
    assert found.text.count("<script>alert(1)</script>") >= 2
    for script in found.scripts[:-1]:
        assert not set("<>&\u2028\u2029") & set(script)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_result_that_is_not_of_its_kind_is_refused(kind):
    result = one_of(kind)
    empty = result.model_copy(update={"measurements": {}, "config": {}})
    with pytest.raises(
        UserError, match=f"^file.json is damaged: not what a result of kind '{kind}' holds"
    ):
        report.render([empty], names=["file.json"])


def test_one_page_for_all():
    results = list(everything().values())
    page = Page(report.render(results))
    assert len([item for item in page.all("a") if (item.get("href") or "").startswith("#")]) >= len(
        results
    )
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    assert page.text.startswith(f"{len(results)} results of sharpmax")


def test_a_certificate_by_its_numbers():
    result = one_of("certify")
    bound, measured = result.arrays["spread_bound"], result.arrays["measured_spread"]
    text = text_of(result)
    assert f"differ by {bound.min():,.0f} to {bound.max():,.0f}, by {np.median(bound):,.0f}" in text
    assert f"Measured were {measured.min():.1f} to {measured.max():.1f}" in text
    assert "within the context of 8,192 tokens that is so for none of them" in text
    (data,) = Page(report.render([result])).data[:1]
    np.testing.assert_allclose(data["values"]["bound"], bound, rtol=1e-4)
    np.testing.assert_allclose(data["values"]["measured"], measured, rtol=1e-4)
    first = data["first"]
    assert bound[first[0], first[1]] == bound.min()


def test_tokens_of_a_certificate_are_those_of_the_result():
    result = one_of("certify")
    for layer, bound in zip(
        result.measurements["layers"], result.arrays["spread_bound"], strict=True
    ):
        for share, expected in layer["log10_items"].items():
            found = certify.log10_tokens(bound, float(share)).max()
            assert found == pytest.approx(expected, abs=1e-3)


def test_heads_that_must_disperse_within_the_context_are_counted():
    result = one_of("certify")
    bound = result.arrays["spread_bound"].copy()
    bound[0, :3] = 2.0
    text = text_of(result.with_arrays(spread_bound=bound))
    assert "that is so for 3 of them" in text
    assert "3 of 270 heads must be below 10 % at the model's full context" in text.replace(
        "\xa0", " "
    )


def test_an_evaluation_by_its_numbers():
    result = one_of("evaluate")
    text = text_of(result).replace("\xa0", " ")
    assert (
        "As it is, the model is right in 31.7 % of cases at 16 names and in 16.4 % at 64." in text
    )
    assert (
        "calibration-answers helps: points of accuracy +18.8 at 16, +35.3 at 32 and +26.9 at 64 names."
        in text
    )
    assert "paper does harm: points of accuracy -25.8 at 16" in text
    assert "log-length:128 helps at some lengths and does harm at others" in text
    assert "No difference was seen for calibration-entropy and constant:1.2@20-29" in text
    assert "On this task use calibration-answers" in text


def test_an_evaluation_in_which_nothing_helps():
    result = one_of("evaluate")
    measurements = copy.deepcopy(result.measurements)
    for row in measurements["rows"]:
        if "compared" in row:
            row["compared"]["p_adjusted"] = 1.0
    text = text_of(result.model_copy(update={"measurements": measurements}))
    assert "Leave the model as it is" in text
    assert "helps:" not in text


def test_table1_by_its_numbers():
    result = one_of("table1")
    mean = result.measurements["mean"]
    gains = np.subtract(mean["adaptive"], mean["baseline"])
    most = int(gains.argmax())
    text = text_of(result)
    assert (
        f"gains most at {result.measurements['sizes'][most]:,} items: {100 * gains[most]:+.1f} points"
        in text
    )


def test_the_leaders_are_the_most_accurate():
    result = one_of("leaderboard")
    found = result.measurements
    text = text_of(result)
    for track in found["tracks"]:
        rows = [row for row in found["rows"] if row["track"] == track and row["task"] == "max"]
        best = max((row for row in rows if "reason" not in row), key=lambda row: row["mean"][-1])
        assert f"items is {best['method']}, right in" in text


def test_figure8_compares_at_the_sizes_beyond_training():
    result = one_of("figure8")
    measurements = copy.deepcopy(result.measurements)
    for one in measurements["algorithms"].values():
        one["arms"]["softmax"]["mean"] = [0.5] * len(one["sizes"])
        one["arms"]["adaptive"]["mean"] = [
            1.0 if size <= max(one["train_sizes"]) else 0.0 for size in one["sizes"]
        ]
    text = text_of(result.model_copy(update={"measurements": measurements}))
    beyond = [
        one
        for one in measurements["algorithms"].values()
        if max(one["sizes"]) > max(one["train_sizes"])
    ]
    worse = int(
        re.search(
            r"trained and tested” is better than “softmax” in \d of 6 algorithms and worse in (\d)",
            text,
        )[1]
    )
    assert worse == len(beyond) > 0


def test_a_calibration_by_its_heads():
    result = one_of("calibration")
    text = text_of(result)
    assert f"{len(result.heads)} of 270 heads are worth sharpening" in text
    assert "up to 124 tokens the model answers as before" in text
    without = result.model_copy(update={"heads": ()})
    assert "No head is worth sharpening" in text_of(without)


def test_a_scan_and_others_share_a_page():
    page = Page(report.render([scan(2, 2, 2), one_of("figure3"), one_of("calibration")]))
    assert page.text.startswith("3 results of sharpmax")


def test_results_without_a_spread_over_seeds():
    """One seed has no standard deviation."""
    result = one_of("table1")
    measurements = result.measurements | {"std": dict.fromkeys(result.measurements["std"])}
    page = Page(report.render([result.model_copy(update={"measurements": measurements})]))
    assert page.data[0]["lines"][0]["low"] is None
